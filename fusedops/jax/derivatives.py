"""Derivatives of every operator, of any order, from its declared derivative or its formula.

The tangents of a call are the results of one more primitive, which is linear: its transpose evaluates the derivative,
and its evaluation, in forward mode, is the linear transpose of the derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fusedops.declarations import Operator
from fusedops.derivatives import FormulaNames, derivative_of
from fusedops.gradients import GRADIENTS, REFUSED, Gradient
from fusedops.jax import internals, neutral
from fusedops.jax.library import BUILT_IN, TABLE, for_each
from fusedops.jax.operators import OPERATORS
from fusedops.jax.primitives import PRIMITIVES, Call

FORMULA_NAMES = FormulaNames(neutral.FUNCTIONS, BUILT_IN)
_GRADIENTS: dict[str, Gradient] = {}


@dataclass(frozen=True)
class Pullback:
    """The gradients of a call: the parameters of the linear primitive.

    Its inputs are the tangents of the wanted inputs, then the saved tensors, by name each.
    """

    call: Call
    wanted: tuple[str, ...]
    saved: tuple[str, ...]
    flowing: tuple[int, ...]  # the places of outputs that have tangents
    tangents_like: tuple[Any, ...]  # the abstract values of their tangents

    def __call__(self, saved: Sequence[Any], dy: Sequence[Any]) -> list[Any]:
        """The gradient of each wanted input; None for zeros. An upstream gradient may be None, for zeros."""
        operator = self.call.operator
        gradient = _GRADIENTS[operator.name]
        tensors = dict.fromkeys(gradient.saves) | dict(zip(self.saved, saved, strict=True))
        context = SimpleNamespace(**self.call.attributes, **tensors, wanted=self.wanted.__contains__)
        upstream: list[Any] = [None] * len(operator.outputs)
        for place, value in zip(self.flowing, dy, strict=True):
            upstream[place] = value
        found = gradient.formula(FORMULA_NAMES.of(operator), context, *upstream)
        return [self._value(name, found.get(name)) for name in self.wanted]

    def _value(self, name: str, gradient: Any) -> Any:
        if gradient is REFUSED:
            raise no_gradient(self.call.operator, name)
        return gradient() if callable(gradient) else gradient

    def tangents(self, values: Sequence[Any]) -> list[Any]:
        """The tangents of the outputs."""
        given, saved = values[: len(self.wanted)], values[len(self.wanted) :]

        def of_upstream(*dy: Any) -> tuple[Any, ...]:
            gradients = self(saved, dy)
            typed = map(_sharded_as, gradients, given)
            return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(typed, given, strict=True))

        return [*jax.linear_transpose(of_upstream, *self.tangents_like)(tuple(given))]


def no_gradient(operator: Operator, name: str | None = None) -> Exception:
    what = "there is no gradient" if name is None else f"{name} has no gradient"
    of = name or "its inputs"
    return ValueError(f"fusedops.{operator.function}: {what}; give it jax.lax.stop_gradient(x) of {of}")


_LINEAR = Primitive("fusedops_tangents")
_LINEAR.multiple_results = True


def _tangents(*values: Any, pullback: Pullback) -> list[Any]:
    return pullback.tangents(_arrays(values))


def _arrays(values: Sequence[Any]) -> list[Any]:
    """The values, with arrays for numbers: JAX passes on a number that a user differentiates in."""
    return [jnp.asarray(x) if isinstance(x, (bool, int, float, np.generic, np.ndarray)) else x for x in values]


def _is_zero(x: Any) -> bool:
    return type(x) is ad.Zero


def _sharded_as(gradient: Any, x: Any) -> Any:
    """The gradient with the sharding in the type of x. A call that gathers x has a gradient that is not sharded."""
    if gradient is None:
        return None
    sharding = (x.aval if ad.is_undefined_primal(x) else jax.typeof(x)).sharding
    is_same = jax.typeof(gradient).sharding.spec == sharding.spec
    return gradient if is_same else jax.sharding.reshard(gradient, sharding)


def _transpose(upstream: Sequence[Any], *values: Any, pullback: Pullback) -> list[Any]:
    if all(map(_is_zero, upstream)):
        return [None] * len(values)
    upstream, saved = _arrays(upstream), _arrays(values[len(pullback.wanted) :])
    gradients = pullback(saved, [None if _is_zero(dy) else dy for dy in upstream])
    return [*map(_sharded_as, gradients, values), *[None] * len(saved)]


def _jvp_of_linear(primals: Sequence[Any], tangents: Sequence[Any], *, pullback: Pullback) -> tuple[Any, Any]:
    count, primals, tangents = len(pullback.wanted), _arrays(primals), _arrays(tangents)
    if all(map(_is_zero, tangents[count:])):
        given = [jnp.zeros_like(p) if _is_zero(t) else t for p, t in zip(primals[:count], tangents, strict=False)]
        rest = primals[count:]
        return _LINEAR.bind(*primals, pullback=pullback), _LINEAR.bind(*given, *rest, pullback=pullback)
    # A tangent of zeros would need a derivative in tensors that may have none, such as the angles of `rope`.
    moving = [i for i, t in enumerate(tangents) if not _is_zero(t)]

    def of_moving(*given: Any) -> list[Any]:
        at = dict(zip(moving, given, strict=True))
        return pullback.tangents([at.get(i, x) for i, x in enumerate(primals)])

    return jax.jvp(of_moving, tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving))


def _batch_of_linear(values: Sequence[Any], dims: Sequence[int | None], *, pullback: Pullback) -> tuple[Any, Any]:
    results = jax.vmap(lambda *each: pullback.tangents(each), in_axes=[*dims])(*values)
    return results, [0] * len(results)


internals.needs_devices(_LINEAR)  # the primitives in its lowering do
_LINEAR.def_impl(_tangents)
_LINEAR.def_abstract_eval(lambda *_, pullback: [*pullback.tangents_like])
mlir.register_lowering(_LINEAR, mlir.lower_fun(_tangents, multiple_results=True))
ad.primitive_transposes[_LINEAR] = _transpose
ad.primitive_jvps[_LINEAR] = _jvp_of_linear
batching.primitive_batchers[_LINEAR] = _batch_of_linear


def _pullback(call: Call, wanted: tuple[str, ...], outputs: Sequence[Any]) -> Pullback:
    """`outputs`: abstract values."""
    gradient = _GRADIENTS[call.name]
    reads = gradient.saves if gradient.reads is None else gradient.reads(wanted)
    present = {*call.given, *(y.name for y in call.operator.outputs)}
    saved = tuple(name for name in gradient.saves if name in reads and name in present)
    declared = zip(call.operator.outputs, outputs, strict=True)
    flowing = tuple(i for i, (y, aval) in enumerate(declared) if not y.saved and _is_floating(aval))
    return Pullback(call, wanted, saved, flowing, tuple(outputs[i].to_tangent_aval() for i in flowing))


def _is_floating(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _jvp(operator: Operator) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, counts: Any, texts: Any) -> tuple[Any, Any]:
        call, primals, tangents = Call(operator.name, counts, texts), _arrays(primals), _arrays(tangents)
        outputs = PRIMITIVES[operator.name].bind(*primals, **call.parameters)
        given = dict(zip(call.given, primals, strict=True))
        dots = {x: t for x, t in zip(call.given, tangents, strict=True) if not _is_zero(t) and _is_floating(given[x])}
        pullback = _pullback(call, tuple(dots), [*map(jax.typeof, outputs)])
        named = given | {y.name: x for y, x in zip(operator.outputs, outputs, strict=True)}
        found = _LINEAR.bind(*dots.values(), *map(named.__getitem__, pullback.saved), pullback=pullback)
        results = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in outputs]
        for place, dot in zip(pullback.flowing, found, strict=True):
            results[place] = dot
        return outputs, results

    return jvp


def _transpose_of(operator: Operator) -> Callable[..., Any]:
    """The transpose in the inputs in which a call is linear, as backward operators are in the upstream gradient."""

    def transpose(upstream: Sequence[Any], *values: Any, counts: Any, texts: Any) -> list[Any]:
        call, upstream, values = Call(operator.name, counts, texts), _arrays(upstream), tuple(_arrays(values))
        linear = [x for x, value in zip(call.given, values, strict=True) if ad.is_undefined_primal(value)]
        known = {
            x: ad.zeros_like_aval(value.aval) if ad.is_undefined_primal(value) else value
            for x, value in zip(call.given, values, strict=True)
        }
        avals = [dy.aval if _is_zero(dy) else jax.typeof(dy) for dy in upstream]
        pullback = _pullback(call, tuple(linear), avals)
        dy = [None if _is_zero(upstream[i]) else upstream[i] for i in pullback.flowing]
        saved = [known.get(name) for name in pullback.saved]
        gradients = dict(zip(linear, pullback(saved, dy), strict=True))
        return [_sharded_as(gradients.get(x), value) for x, value in zip(call.given, values, strict=True)]

    return transpose


def _refuse(operator: Operator) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise no_gradient(operator)

    return refuse


def _register(operator: Operator) -> None:
    primitive = PRIMITIVES[operator.name]
    if not operator.differentiable or not (operator.derivative or operator.name in GRADIENTS):
        ad.primitive_jvps[primitive] = _refuse(operator)
        return
    FORMULA_NAMES.add(operator.name, getattr(OPERATORS, operator.name))
    _GRADIENTS[operator.name] = derivative_of(TABLE, operator)
    ad.primitive_jvps[primitive] = _jvp(operator)
    ad.primitive_transposes[primitive] = _transpose_of(operator)


for_each(_register)
