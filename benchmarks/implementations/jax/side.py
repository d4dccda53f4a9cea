"""JAX: fusedops and XLA's own code for the formula, each compiled by jax.jit as a whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import numpy as np

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

import fusedops.jax as fo
from benchmarks.cases.case import OPTIMIZERS, Case
from benchmarks.implementations.jax.functions import FUNCTIONS, matmul
from benchmarks.measuring.timing import Build, Call, HostClock, Implementation
from benchmarks.operators import OPERATORS, layouts
from benchmarks.operators.layouts import drawn, dtype_of, expression, has_both, public
from benchmarks.operators.record import Function, Input, Layout

NAME, TITLE = "jax", "JAX"

jax.config.update("jax_enable_x64", True)  # for the reference in float64

_increment = jax.jit(lambda x: x + 1)


def version() -> str:
    return jax.__version__


def has_gpu() -> bool:
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


def synchronize() -> None:
    """Waits for the default device, which runs programs in order. Errors of earlier programs are raised here."""
    jax.block_until_ready(_increment(0))


def cache_size() -> None:
    """None: JAX does not report the size of the L2 cache."""


def load_baselines() -> list[str]:
    return []


def memory(call: Call) -> tuple[int, int]:
    raise NotImplementedError("JAX reports the peak of the whole process only")


@contextmanager
def on(device: str) -> Iterator[None]:
    """Sets the device of a case, and disables TF32 in products."""
    (at, *_) = jax.devices("gpu" if device == "cuda" else device)
    with jax.default_device(at), jax.default_matmul_precision("highest"):
        yield


def inputs(case: Case) -> dict[str, Any]:
    return drawn(case, _draw)


def _draw(case: Case, x: Input, layout: Layout) -> jax.Array:
    key = jax.random.key(zlib.crc32(x.name.encode()))
    if x.integers:
        return jnp.asarray(x.integers(case))
    if x.classes:
        return jax.random.randint(key, layout.shape, 0, x.classes(case), jnp.int32)
    dtype = dtype_of(case, x)
    if callable(x.values):
        return jnp.asarray(x.values(layout.shape), dtype)
    if x.values is not None:
        return jnp.asarray(x.values, dtype)
    drawn = "float64" if dtype == "float64" else "float32"
    return jax.random.normal(key, layout.shape, drawn).astype(dtype)


def wide(tensor: jax.Array, places: np.ndarray | slice | None, axis: int | None) -> jax.Array:
    """A selection of a tensor along an axis, or all of it, in float64; integers are not converted."""
    if places is not None:
        tensor = tensor[(slice(None),) * (axis or 0) + (places,)]
    return tensor.astype(jnp.float64) if jnp.issubdtype(tensor.dtype, jnp.floating) else tensor


def norm(tensor: jax.Array) -> float:
    return float(jnp.linalg.norm(tensor.ravel()))


def formula(case: Case) -> Function:
    return layouts.formula(FUNCTIONS, matmul, case)


def call(
    case: Case, function: Function, values: Mapping[str, Any], wrap: Callable[[Function], Function] = lambda f: f
) -> Call:
    """The call to be timed, which returns outputs, gradients, or both.

    The reference is not compiled: it is another function for each chunk of rows.
    """
    operator = OPERATORS[case.operator]
    given = [values[name] for name in operator.names]
    if "backward" not in case.variant:
        return _waiting(case, partial(wrap(function), *given))
    places = [place for place, x in enumerate(operator.inputs) if x.gradient]
    upstream = tuple(value for name, value in values.items() if name not in operator.names)

    def differentiated(given: list[Any]) -> tuple[list[Any], Callable[..., Any]]:
        def of_wanted(*wanted: Any) -> tuple[Any, ...]:
            arguments = list(given)
            for place, value in zip(places, wanted, strict=True):
                arguments[place] = value
            found = function(*arguments)
            return tuple(found) if isinstance(found, (tuple, list)) else (found,)

        return jax.vjp(of_wanted, *(given[place] for place in places))

    def step(given: list[Any], upstream: tuple[Any, ...]) -> list[Any]:
        outputs, pull_back = differentiated(given)
        # Includes the outputs: XLA would eliminate unused ones.
        return [*outputs, *pull_back(upstream or tuple(map(jnp.ones_like, outputs)))]

    if case.variant == "backward":  # the backward only, over the saved tensors of a forward
        _, pull_back = differentiated(given)
        return _waiting(case, partial(wrap(lambda pull_back, dy: pull_back(dy)), pull_back, upstream))
    return _waiting(case, partial(wrap(step), given, upstream))


def _waiting(case: Case, call: Call) -> Call:
    """The call; on a CPU, where calls may overlap, with its end."""
    return call if case.device == "cuda" else lambda: jax.block_until_ready(call())


def implementations(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    if case.section == OPTIMIZERS:
        from benchmarks.implementations.jax import optimizers  # needs Optax

        return optimizers.implementations(case, partial(_clock, case))

    def timed(function: Callable[[], Function]) -> Build:
        return lambda: Implementation(call(case, function(), values, jax.jit), _clock(case))

    result = {"fusedops": timed(partial(public, fo, case)), "XLA": timed(partial(formula, case))}
    if has_both(case):
        result["fusedops, expression"] = timed(partial(expression, fo, case))
    if case.is_attention and case.device == "cuda":
        options = OPERATORS[case.operator].options
        causal = bool(options and options(case)["causal"])
        own = partial(jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn")
        result["cuDNN"] = timed(lambda: own)
    if not case.is_arithmetic:
        result["copy"] = lambda: _copy(case, values)
    return result


def _copy(case: Case, values: Mapping[str, Any]) -> Implementation:
    """A copy, whose bandwidth defines the floor of a case."""
    x = next(x for x in values.values() if isinstance(x, jax.Array) and x.shape == case.shape)
    work = 2.0 * prod(case.shape) * x.dtype.itemsize
    return Implementation(_waiting(case, partial(jax.jit(jnp.copy), x)), _clock(case), work=work, checked=False)


def _clock(case: Case) -> HostClock:
    return HostClock() if case.device == "cpu" else HostClock(synchronize)
