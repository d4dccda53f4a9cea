"""AdamW over many parameters: fusedops's and Optax's, as compiled steps that write donated parameters and states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.cases.case import Case
from benchmarks.cases.optimizers import sizes_of
from benchmarks.measuring.timing import Build, Call, Clock, Implementation
from fusedops.jax.optim import adamw


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    gradients = [jnp.full(size, 1e-3, case.dtype) for size in sizes_of(case)]
    ours, plain = adamw(1e-4), optax.adamw(1e-4)

    def updated(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        updates, state = plain.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def build(init: Callable[..., Any], update: Callable[..., Any]) -> Implementation:
        return Implementation(_stepping(case, init, update, gradients), clock(), checked=False)

    return {
        "fusedops": partial(build, ours.init, ours.update_in_place),
        "XLA": partial(build, plain.init, updated),
    }


def _stepping(case: Case, init: Callable[..., Any], update: Callable[..., Any], gradients: list[Any]) -> Call:
    """A call that takes a step from the parameters and the state that the last one left."""
    params = [jnp.zeros(size, case.dtype) for size in sizes_of(case)]
    now = params, init(params)
    step = jax.jit(update, donate_argnums=(0, 1))

    def call() -> Any:
        nonlocal now
        now = step(*now, gradients)
        return now if case.device == "cuda" else jax.block_until_ready(now)

    return call
