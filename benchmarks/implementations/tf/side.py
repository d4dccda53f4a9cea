"""TensorFlow: fusedops and TensorFlow's own operators, eager; operators over rows also as graphs and under XLA."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import tensorflow as tf

import fusedops.tf as fo
from benchmarks.cases.case import BOTH, CALLS, FIRST_USE, GROWTH, OPTIMIZERS, STEPS, Case
from benchmarks.implementations.tf.functions import FUNCTIONS, matmul
from benchmarks.measuring.timing import Build, Call, HostClock, Implementation
from benchmarks.operators import OPERATORS, OVER_ROWS, layouts
from benchmarks.operators.layouts import drawn, dtype_of, expression, has_both, public
from benchmarks.operators.record import Function, Input, Layout

NAME, TITLE = "tf", "TensorFlow"

_GRAPH = partial(tf.function, autograph=False)
_XLA = partial(tf.function, autograph=False, jit_compile=True)


def version() -> str:
    return tf.__version__


def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def synchronize() -> None:
    """Waits for the GPU. Errors of earlier kernels are raised here."""
    tf.test.experimental.sync_devices()


def cache_size() -> None:
    """None: TensorFlow does not report the size of the L2 cache."""


def load_baselines() -> list[str]:
    return []


def memory(call: Call) -> tuple[int, int]:
    """Bytes of GPU memory in use before a call, and the peak during it."""
    call()  # frees the memory of the previous implementation
    tf.test.experimental.sync_devices()
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    call()
    tf.test.experimental.sync_devices()
    return before, tf.config.experimental.get_memory_info("GPU:0")["peak"]


@contextmanager
def on(device: str) -> Iterator[None]:
    """Sets the device of a case, and disables TF32 in products."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with tf.device("/GPU:0" if device == "cuda" else "/CPU:0"):
            yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(tf32)


def inputs(case: Case) -> dict[str, Any]:
    tf.random.set_seed(0)
    return drawn(case, _draw)


def _draw(case: Case, x: Input, layout: Layout) -> tf.Tensor:
    dtype = dtype_of(case, x)
    if x.integers:
        return tf.constant(x.integers(case))
    if x.classes:
        return tf.random.uniform(layout.shape, maxval=x.classes(case), dtype=tf.int64)
    if callable(x.values):
        return tf.cast(tf.constant(x.values(layout.shape)), dtype)
    if x.values is not None:
        return tf.constant(x.values, dtype)
    drawn = "float64" if dtype == "float64" else "float32"
    return tf.cast(tf.random.normal(layout.shape, dtype=drawn), dtype)


def wide(tensor: tf.Tensor, places: np.ndarray | slice | None, axis: int | None) -> tf.Tensor:
    """A selection of a tensor along an axis, or all of it, in float64; integers are not converted."""
    if isinstance(places, slice):
        tensor = tensor[(slice(None),) * (axis or 0) + (places,)]
    elif places is not None:
        tensor = tf.gather(tensor, places, axis=axis)
    return tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor


def norm(tensor: tf.Tensor) -> float:
    return float(tf.norm(tf.cast(tensor, tf.float64)))


def formula(case: Case) -> Function:
    return layouts.formula(FUNCTIONS, matmul, case)


def call(
    case: Case, function: Function, values: Mapping[str, Any], wrap: Callable[[Function], Function] = lambda f: f
) -> Call:
    """The call to be timed, which returns outputs, gradients, or both."""
    operator = OPERATORS[case.operator]
    given = {name: values[name] for name in operator.names}
    arguments = list(given.values())
    if "backward" not in case.variant:
        return partial(wrap(function), *arguments)
    places = [place for place, x in enumerate(operator.inputs) if x.gradient]
    upstream = [value for name, value in values.items() if name not in given] or None
    if case.variant == "backward":  # the backward only, over a persistent tape
        wanted = [arguments[place] for place in places]
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            y = function(*arguments)
        return partial(_gradients, case, tape, [y], wanted, upstream)

    def step(arguments: list[Any], upstream: list[Any] | None) -> list[Any]:
        wanted = [arguments[place] for place in places]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            outputs = function(*arguments)
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        # Includes the outputs: a compiler would eliminate unused ones.
        return [*outputs, *_gradients(case, tape, outputs, wanted, upstream)]

    return partial(wrap(step), arguments, upstream)


def _gradients(case: Case, tape: tf.GradientTape, outputs: Any, wanted: list[Any], upstream: Any) -> list[Any]:
    """The gradients. TensorFlow 2.21 leaks a gradient that a tape returns for two sources: for a sum, ask only once."""
    if not OPERATORS[case.operator].sums:
        return list(tape.gradient(outputs, wanted, upstream))
    x, _, *others = wanted
    dx, *gradients = tape.gradient(outputs, [x, *others], upstream)
    return [dx, dx, *gradients]


def implementations(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    if case.section == OPTIMIZERS:
        return import_module("benchmarks.implementations.tf.optimizers").implementations(case, partial(_clock, case))
    if case.section in ("keras", STEPS):
        result = import_module("benchmarks.implementations.tf.keras").implementations(
            case, values, partial(_clock, case)
        )
        return result | ({"copy": lambda: _copy(case, values)} if values else {})

    if case.section == FIRST_USE:
        return {"fusedops": lambda: Implementation(_first_use(case, values), _clock(case))}

    def timed(function: Callable[[], Function], wrap: Callable[[Function], Function] = lambda f: f) -> Build:
        return lambda: Implementation(call(case, function(), values, wrap), _clock(case))

    ours, plain = partial(public, fo, case), partial(formula, case)
    result = {"fusedops": timed(ours), "eager": timed(plain)}
    if has_both(case) and case.section not in GROWTH:  # an expression is compiled for every row length
        result["fusedops, expression"] = timed(partial(expression, fo, case))
    if case.section in CALLS:
        return result | _call_baselines(case, values)
    if not case.is_arithmetic:
        result["copy"] = lambda: _copy(case, values)
    compiled = OPERATORS[case.operator] in OVER_ROWS or case.is_attention or case.is_layer or case.section == "cpu"
    if compiled and case.section not in GROWTH and case.variant != "backward":  # a tape's backward is not compiled
        result["fusedops, graph"] = timed(ours, _GRAPH)
        result["graph"] = timed(plain, _GRAPH)
        result["XLA"] = timed(plain, _XLA)
        if case.device == "cpu":
            result["fusedops, XLA"] = timed(ours, _XLA)
    return result


def _copy(case: Case, values: Mapping[str, Any]) -> Implementation:
    """A copy, whose bandwidth defines the floor of a case."""
    x = next(x for x in values.values() if isinstance(x, tf.Tensor) and x.shape == case.shape)
    work = 2.0 * prod(case.shape) * x.dtype.size
    copy = partial(tf.raw_ops.DeepCopy, x=tf.bitcast(x, tf.half) if x.dtype.size == 2 else x)
    if copy().device != x.device:  # without a kernel, TensorFlow silently picks another device
        raise NotImplementedError(f"DeepCopy runs on {copy().device}")
    return Implementation(copy, _clock(case), work=work, checked=False)


def _call_baselines(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    """TensorFlow's own overhead of a call and of a tape's step, and the bare operator."""
    add = replace(case, operator="add", variant=BOTH if case.variant == BOTH else "forward")
    adding = call(add, tf.add, inputs(add))
    result = {"tf.add": lambda: Implementation(adding, _clock(case), checked=False)}
    if case.variant == BOTH:
        result["bare tape"] = lambda: Implementation(_bare_tape(case), _clock(case), checked=False)
    if case.device == "cpu" and case.variant == "forward" and OPERATORS[case.operator].elementwise:
        x = tf.random.normal(case.shape)
        result["raw"] = lambda: Implementation(_raw(case, values), _clock(case))
        result["raw_ops.AddV2"] = lambda: Implementation(
            partial(tf.raw_ops.AddV2, x=x, y=x), _clock(case), checked=False
        )
    return result


def _bare_tape(case: Case) -> Call:
    """A tape's step over the same number of watched tensors; Pack's gradient function only calls Unpack."""
    tensors = [tf.random.normal(case.shape) for _ in OPERATORS[case.operator].inputs]
    upstream = tf.random.normal((len(tensors), *case.shape))

    def step() -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            y = tf.raw_ops.Pack(values=tensors)
        return list(tape.gradient([y], tensors, [upstream]))

    return step


def _first_use(case: Case, values: Mapping[str, Any]) -> Call:
    """A call that uses a new name each time, since a known expression would not be compiled."""
    names = (f"first_{i}_{time.time_ns()}" for i in itertools.count())
    return lambda: expression(fo, case, next(names))(*values.values())


def _clock(case: Case) -> HostClock:
    return HostClock() if case.device == "cpu" else HostClock(tf.test.experimental.sync_devices)


def _raw(case: Case, values: Mapping[str, Any]) -> Call:
    """A call of the registered operator without the functions of `fusedops.tf`."""
    operator = getattr(tf.load_op_library(fo.library_path()), f"fusedops_{case.operator}")
    arguments = [tf.constant(value) if isinstance(value, float) else value for value in values.values()]
    return partial(operator, *arguments)
