"""Optimizers that update all parameters in one pass: `from fusedops.jax.optim import adamw`.

An Optax transformation returns updates, which another pass adds to the parameters. These return the new parameters, and
under `jax.jit` with donated parameters and states they write them in place. Their states are Optax's: a checkpoint of
either is one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fusedops.jax.operators import OPERATORS

Schedule = Callable[[Any], Any]
_NO_SCALING: tuple[Any, Any] = (None, None)  # grad_scale and found_inf


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that `adamw` or `sgd` makes.

    Attributes:
        transformation: the Optax transformation with the same formula and states.
    """

    transformation: optax.GradientTransformation
    _step: Callable[[Any, Callable[..., list[Any]]], tuple[Any, Any]]  # step(state, by_dtype): new parameters and state
    _max_norm: float | None

    def init(self, params: Any) -> Any:
        """The first state: that of `transformation`."""
        return self.transformation.init(params)

    def update_in_place(self, params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        """The new parameters and the new state.

        Call it in a function under `jax.jit` with `donate_argnums` of the parameters and the state: both are then
        written in their own memory. Without donation they are copied first. The function must take and return the
        parameters before the state, since JAX gives the results of a shape the donated memory of that shape in order.
        """
        leaves, tree = jax.tree.flatten(params)
        flat_grads = tree.flatten_up_to(grads)
        clip = None
        own = state
        if self._max_norm is not None:
            first, own = state
            clip = jnp.minimum(1.0, self._max_norm / _norm(flat_grads))

        def by_dtype(update: Callable[..., Sequence[list[Any]]], *states: Any) -> list[Any]:
            """The new parameters and states that `update(params, grads, *states, clip)` makes of lists of one dtype."""
            lists = [leaves, flat_grads, *(tree.flatten_up_to(x) for x in states)]
            new = [list(leaves), *map(list, lists[2:])]
            for dtype in dict.fromkeys(x.dtype for x in leaves):
                places = [i for i, x in enumerate(leaves) if x.dtype == dtype]
                found = update(*([each[i] for i in places] for each in lists), _scalar(clip, dtype))
                for target, values in zip(new, found, strict=True):
                    for i, value in zip(places, values, strict=True):
                        target[i] = value
            return [tree.unflatten(x) for x in new]

        new_params, own = self._step(own, by_dtype)
        return new_params, own if self._max_norm is None else (first, own)


def adamw(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    max_norm: float | None = None,
) -> Optimizer:
    """optax.adamw, as an update of all parameters in one pass.

    Args:
        learning_rate, b1, b2, eps, mu_dtype, weight_decay: those of optax.adamw.
        max_norm: the norm to which the gradients of all parameters together are clipped, as by
            optax.clip_by_global_norm in a chain before optax.adamw; None: no clipping.

    Returns:
        An `Optimizer`. Arithmetic is in float32, or in float64 for float64, and rounded once for each result.

    Example:
        >>> optimizer = fusedops.jax.optim.adamw(0.5, weight_decay=0.0)
        >>> params = {"w": jnp.array([1.0, 2.0])}
        >>> state = optimizer.init(params)
        >>> params, state = optimizer.update_in_place(params, state, {"w": jnp.array([1.0, -1.0])})
        >>> params["w"]
        Array([0.5, 2.5], dtype=float32)
    """
    transformation = optax.adamw(learning_rate, b1, b2, eps, mu_dtype=mu_dtype, weight_decay=weight_decay)

    def step(state: Any, by_dtype: Callable[..., list[Any]]) -> tuple[Any, Any]:
        adam, decay, rate = state
        lr = _rate(learning_rate, rate)
        count = adam.count.astype(jnp.float32)

        def update(params: Any, grads: Any, mu: Any, nu: Any, clip: Any) -> Any:
            options: dict[str, Any] = {"beta1": b1, "beta2": b2, "eps": eps, "weight_decay": weight_decay}
            found = OPERATORS.adamw(
                params, grads, mu, nu, [], [], [], _scalar(lr, params[0].dtype), count, *_NO_SCALING, clip, **options
            )
            return found[:3]

        params, mu, nu = by_dtype(update, adam.mu, adam.nu)
        adam = adam._replace(count=optax.safe_increment(adam.count), mu=mu, nu=nu)
        return params, (adam, decay, _counted(rate))

    return _optimizer(transformation, step, max_norm)


def sgd(
    learning_rate: float | Schedule,
    momentum: float | None = None,
    nesterov: bool = False,
    *,
    accumulator_dtype: Any = None,
    max_norm: float | None = None,
) -> Optimizer:
    """optax.sgd, as an update of all parameters in one pass; see `adamw`.

    Args:
        learning_rate, momentum, nesterov, accumulator_dtype: those of optax.sgd.
        max_norm: as in `adamw`.

    Returns:
        An `Optimizer`.

    Example:
        >>> optimizer = fusedops.jax.optim.sgd(0.5)
        >>> params = jnp.array([1.0, 2.0])
        >>> params, _ = optimizer.update_in_place(params, optimizer.init(params), params)
        >>> params
        Array([0.5, 1. ], dtype=float32)
    """
    transformation = optax.sgd(learning_rate, momentum, nesterov, accumulator_dtype)

    def step(state: Any, by_dtype: Callable[..., list[Any]]) -> tuple[Any, Any]:
        trace, rate = state
        lr = _rate(learning_rate, rate)

        def update(params: Any, grads: Any, *rest: Any) -> Any:
            *momentums, clip = rest
            options: dict[str, Any] = {"momentum": momentum or 0.0, "nesterov": nesterov}
            given = momentums[0] if momentums else []
            found = OPERATORS.sgd(params, grads, given, _scalar(lr, params[0].dtype), *_NO_SCALING, clip, **options)
            return found[: 1 + len(momentums)]

        if momentum is None:
            (params,) = by_dtype(update)
        else:
            params, new = by_dtype(update, trace.trace)
            trace = trace._replace(trace=new)
        return params, (trace, _counted(rate))

    return _optimizer(transformation, step, max_norm)


def _optimizer(transformation: Any, step: Any, max_norm: float | None) -> Optimizer:
    if max_norm is not None:
        transformation = optax.chain(optax.clip_by_global_norm(max_norm), transformation)
    return Optimizer(transformation, step, max_norm)


def _rate(learning_rate: float | Schedule, state: Any) -> Any:
    """The learning rate of this step, from the state of Optax's schedule."""
    return learning_rate(state.count) if callable(learning_rate) else learning_rate


def _scalar(value: Any, dtype: Any) -> Any:
    """A number or an array of one element as operators take it beside parameters of this dtype."""
    return value.astype(jnp.float64 if dtype == jnp.float64 else jnp.float32) if hasattr(value, "astype") else value


def _norm(tensors: Sequence[Any]) -> Any:
    """The norm of all elements. Each call has the tensors of one dtype."""
    dtypes = dict.fromkeys(x.dtype for x in tensors)
    norms = [OPERATORS.global_norm([x for x in tensors if x.dtype == dtype]) for dtype in dtypes]
    return norms[0] if len(norms) == 1 else jnp.sqrt(sum(norm**2 for norm in norms))


def _counted(state: Any) -> Any:
    """The state of a schedule after this step; Optax's state without a schedule is empty."""
    return state._replace(count=optax.safe_increment(state.count)) if "count" in state._fields else state
