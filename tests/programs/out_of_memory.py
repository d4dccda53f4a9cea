"""Run by tests/generic/test_out_of_memory.py with tests/helpers/failing_new.cpp in LD_PRELOAD: calls every operator,
forward and backward, while one allocation of the core or the binding fails, each in turn. Prints the number of calls
that raised an error for each specification, as JSON, or null if the library's own copy of operator new hides its
allocations: some compilers link the C++ runtime statically. Arguments: framework, device."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.helpers.frameworks import backend
from tests.specifications import SPECIFICATIONS

FRAMEWORK, DEVICE = sys.argv[1:]
BACKEND = backend(FRAMEWORK, DEVICE)
LIBRARIES = {"torch": b"fusedops/torch/_C", "tf": b"fusedops/tf/_"}[FRAMEWORK]
SHAPE = (64, 2, 96)  # enough for several threads
NEVER = 1 << 40  # more allocations than any call makes

NEW = ctypes.CDLL(os.environ["LD_PRELOAD"])
NEW.fail_allocation.argtypes = [ctypes.c_char_p, ctypes.c_long]
NEW.stop_failing.restype = ctypes.c_long


def attempt(call: Callable[[], Any], number: int) -> tuple[Any, Exception | None, int]:
    """The result or error of a call in which this allocation fails, and the number of allocations. Runs in a new
    thread, without scratch memory from earlier calls."""
    outputs, raised, count = None, None, 0

    def run() -> None:
        nonlocal outputs, raised, count
        NEW.fail_allocation(LIBRARIES, number)
        try:
            outputs = call()
        except Exception as error:
            raised = error
        finally:
            count = NEW.stop_failing()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outputs, raised, count


def check_error(error: Exception) -> None:
    if FRAMEWORK == "torch":
        assert type(error) is RuntimeError, repr(error)
    else:
        assert isinstance(error, BACKEND.tf.errors.ResourceExhaustedError), repr(error)
    assert "CPU out of memory. " in str(error), error


def bits(outputs: Any) -> list[bytes]:
    return [BACKEND.to_numpy(y).tobytes() for y in outputs]


def errors(call: Callable[[], Any]) -> int:
    """The number of calls that raised the framework's error. All others must be right, also those after an error."""
    expected, failed, number, count = bits(call()), 0, 0, 1
    while number < count:
        outputs, raised, count = attempt(call, number)
        if raised:
            check_error(raised)
            failed += 1
        else:
            assert bits(outputs) == expected
        assert bits(call()) == expected
        number += 1
    return failed


def calls(spec: Any) -> dict[str, Callable[[], Any]]:
    sample = spec.sample(SHAPE, np.random.default_rng(0))
    inputs, wanted = BACKEND.tensors(sample, "bfloat16"), spec.differentiable(sample)

    def eager() -> Any:
        outputs, gradients = BACKEND.gradients(spec.name, inputs, sample.options, wanted)
        return [*outputs, *gradients.values()]

    if FRAMEWORK == "torch":
        return {"eager": eager}
    names = list(sample.tensors)

    @BACKEND.tf.function(jit_compile=True)
    def compiled(*tensors: Any) -> Any:
        given = inputs | dict(zip(names, tensors, strict=True))
        return BACKEND.call(spec.name, given, sample.options)

    return {"eager": eager, "XLA": lambda: compiled(*[inputs[name] for name in names])}


def are_allocations_seen() -> bool:
    """True if the library's allocations are counted: the binding allocates the shapes of an operator's outputs
    itself."""
    spec = SPECIFICATIONS[0]
    _, _, count = attempt(calls(spec)["eager"], NEVER)
    return count > 0


with BACKEND.place:
    if not are_allocations_seen():
        print("null")
        sys.exit()
    failed = {f"{spec} {way}": errors(call) for spec in SPECIFICATIONS for way, call in calls(spec).items()}
print(json.dumps(failed))
