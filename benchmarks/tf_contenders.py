"""TensorFlow: fusedops and TensorFlow's own operators, eagerly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import tensorflow as tf

import fusedops.tf as fo
from benchmarks.cases import Case
from benchmarks.formulas import FACTOR, INPUTS, WANTED, expressions
from benchmarks.timing import Call, Contender, HostClock

NAME, TITLE = "tf", "TensorFlow"
EXPRESSIONS = expressions(relu=tf.nn.relu)

tf.config.experimental.enable_tensor_float_32_execution(False)


def version() -> str:
    return tf.__version__


def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


@contextmanager
def on(device: str) -> Iterator[None]:
    """The device of a case."""
    with tf.device("/GPU:0" if device == "cuda" else "/CPU:0"):
        yield


def inputs(case: Case) -> dict[str, Any]:
    tf.random.set_seed(0)
    if case.operator == "matmul":
        m, n, k = case.shape
        transpose_a, transpose_b = case.transposes
        a = _normal((k, m) if transpose_a else (m, k), case.dtype)
        return {"a": a, "b": _normal((n, k) if transpose_b else (k, n), case.dtype)}
    values: dict[str, Any] = dict.fromkeys(INPUTS[case.operator], FACTOR)
    values.update({name: _normal(case.shape, case.dtype) for name in values if name in "xyb"})
    if "a" in values:
        values["a"] = tf.constant(FACTOR, case.dtype)
    if case.variant == "backward":
        values["dy"] = _normal(case.shape, case.dtype)
    return values


def _normal(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    drawn = "float64" if dtype == "float64" else "float32"
    return tf.cast(tf.random.normal(shape, dtype=drawn), dtype)


def take(tensor: tf.Tensor, places: np.ndarray, axis: int) -> np.ndarray:
    tensor = tf.reshape(tensor, [1]) if tensor.shape.rank == 0 else tensor
    return tf.cast(tf.gather(tensor, places, axis=axis), tf.float64).numpy()


def dot(x: tf.Tensor, y: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.cast(x, tf.float64) * tf.cast(y, tf.float64)))


def contenders(case: Case, values: Mapping[str, Any]) -> dict[str, Contender]:
    ours, eager = _functions(case)
    if case.variant == "backward":
        ours, eager = _gradient(case, ours, values), _gradient(case, eager, values)
    else:
        ours, eager = partial(ours, *values.values()), partial(eager, *values.values())
    clock = HostClock if case.device == "cpu" else partial(HostClock, tf.test.experimental.sync_devices)
    result = {"fusedops": Contender(ours, clock()), "eager": Contender(eager, clock())}
    if case.section == "call":
        x, y = _normal(case.shape, case.dtype), _normal(case.shape, case.dtype)
        result["tf.add"] = Contender(partial(tf.add, x, y), clock(), checked=False)
        result["raw"] = Contender(_raw(case, values), clock())
        result["raw_ops.AddV2"] = Contender(partial(tf.raw_ops.AddV2, x=x, y=y), clock(), checked=False)
    return result


def _functions(case: Case) -> tuple[Callable[..., Any], Callable[..., Any]]:
    ours = getattr(fo, case.operator)
    if case.operator != "matmul":
        return ours, EXPRESSIONS[case.operator]
    transpose_a, transpose_b = case.transposes
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    return partial(ours, **options), partial(tf.matmul, **options)


def _gradient(case: Case, function: Callable[..., Any], values: Mapping[str, Any]) -> Call:
    """The backward alone, over a tape that stays."""
    arguments = [values[name] for name in INPUTS[case.operator]]
    wanted = [values[name] for name in WANTED[case.operator]]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        for tensor in wanted:
            tape.watch(tensor)
        y = function(*arguments)
    return partial(tape.gradient, y, wanted, values["dy"])


def _raw(case: Case, values: Mapping[str, Any]) -> Call:
    """The registered operator without the functions of `fusedops.tf`."""
    operator = getattr(tf.load_op_library(fo.library_path()), f"fusedops_{case.operator}")
    arguments = [tf.constant(value) if isinstance(value, float) else value for value in values.values()]
    return partial(operator, *arguments)
