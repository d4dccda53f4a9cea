"""A failed allocation of a result, a workspace or a copy raises the framework's own error."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.frameworks import Torch
from tests.helpers.running import ROOT, compiled, run_program
from tests.helpers.specification import Specification

ROWS = 2**44  # more memory than a machine has, even with one byte per row


def without_memory(backend: Torch, spec: Specification, random: np.random.Generator) -> tuple[dict, Any]:
    """Inputs and options of a call of ROWS rows, all at one address."""
    one, two = (spec.sample((rows, 2, 2, 8), random) for rows in (1, 2))
    inputs = backend.tensors(one, "float32")
    for name in one.tensors:
        shapes = list(zip(np.shape(one.inputs[name]), np.shape(two.inputs[name]), strict=True))
        if any(was not in (1, now) for was, now in shapes):
            pytest.skip("rows that lie one behind the other have no dimension of their own")
        inputs[name] = inputs[name].expand([ROWS if was != now else now for was, now in shapes])
    return inputs, one.options


@pytest.fixture
def refused(torch_backend: Torch) -> Callable[..., None]:
    """Calls a function, in which torch must raise its own error, word for word except for the size."""
    torch = torch_backend.torch

    def error(function: Callable[..., Any], *arguments: Any) -> tuple[type, str]:
        with pytest.raises(RuntimeError, match="memory") as caught:
            function(*arguments)
        before, _, behind = str(caught.value).partition("ocate")
        assert behind
        return type(caught.value), before

    own = error(lambda: torch.empty(ROWS, 8, device=torch_backend.device))
    assert own[0] is (RuntimeError if torch_backend.device == "cpu" else torch.OutOfMemoryError)

    def check(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        assert error(partial(function, **keywords), *arguments) == own

    return check


def test_torch(torch_backend, spec, refused, random):
    """Called by the public function, with autograd, raw and compiled. The call holds no memory afterwards, and the next
    call succeeds."""
    inputs, options = without_memory(torch_backend, spec, random)
    floating = [name for name, x in inputs.items() if x.is_floating_point() and name not in spec.not_differentiable]
    users = [torch_backend.torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in inputs.values()]
    refused(torch_backend.call, spec.name, inputs, options)
    refused(torch_backend.call, spec.name, torch_backend.leaves(inputs, floating), options)
    refused(getattr(torch_backend.torch.ops.fusedops, spec.operator), *inputs.values(), **options)
    refused(torch_backend.traced(lambda given: torch_backend.call(spec.name, given, options)), inputs)
    assert users == [torch_backend.torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in inputs.values()]
    torch_backend.call(spec.name, torch_backend.tensors(spec.sample((2, 3, 2, 8), random), "float32"), options)


def test_a_failed_allocation_of_the_backward_raises_the_error_of_torch(torch_backend, refused):
    """The backward runs on autograd's own thread if there is a GPU."""
    torch = torch_backend.torch
    large = torch.ones(1, 8, device=torch_backend.device).expand(ROWS, 8)
    y = torch.ones(8, device=torch_backend.device, requires_grad=True) * 2
    y.register_hook(lambda dy: torch.ops.fusedops.relu_backward(large, large))
    refused(y.sum().backward)


def test_a_failed_allocation_of_a_layer_raises_the_error_of_torch(torch_backend, refused):
    """Layers consult torch's own layer for errors of their inputs, but not for this error."""
    import fusedops.torch.nn as fnn

    torch = torch_backend.torch
    x = torch.ones(1, 8, device=torch_backend.device).expand(ROWS, 8)
    for layer in (fnn.RMSNorm(8), fnn.LayerNorm(8), fnn.Softmax(-1)):
        refused(layer.to(x.device), x)
    refused(fnn.CrossEntropyLoss(), x, torch.zeros(1, dtype=torch.int64, device=x.device).expand(ROWS))


def test_a_failed_allocation_raises_the_error_of_tensorflow(tf_backend):
    """Eager, in a graph and by XLA. Only a product's result can be larger than its inputs.

    The calls run in parallel, since TensorFlow waits ten seconds for memory before it raises its error."""
    tf, size, matmul = tf_backend.tf, 2**22, tf_backend.functions.matmul
    a, b = tf.ones((size, 1)), tf.ones((1, size))

    def check(call: Callable[..., Any]) -> None:
        with tf_backend.place, pytest.raises(tf.errors.ResourceExhaustedError, match="allocat"):
            call(a, b)

    with ThreadPoolExecutor() as threads:
        list(threads.map(check, (matmul, tf.function(matmul), tf.function(matmul, jit_compile=True))))
    assert matmul(a[:2], b[:, :3]).shape == (2, 3)


@pytest.fixture(scope="module")
def failing_new(tmp_path_factory) -> Path:
    """A library that makes one C++ allocation fail."""
    library = tmp_path_factory.mktemp("new") / "libfailing_new.so"
    return compiled(ROOT / "tests/helpers/failing_new.cpp", library, "-std=c++17", "-O1", "-shared", "-fPIC")


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.slow
def test_scratch(any_backend, failing_new):
    """Each allocation of the core and the binding fails once. That call raises the framework's error, and the next one
    has the right bits."""
    done = run_program(
        "out_of_memory.py",
        any_backend.framework,
        any_backend.device,
        device=any_backend.device,
        is_new=True,
        LD_PRELOAD=str(failing_new),
    )
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    if failed is None:
        pytest.skip("the C++ runtime is linked statically: allocations cannot be made to fail")
    if any_backend.device == "cpu":  # scratch memory of products, attention and expressions
        assert {name.split()[0] for name, count in failed.items() if count} >= {"matmul", "attention", "norm"}
