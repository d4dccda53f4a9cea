"""Derivatives of every operator, of any order, from its declared derivative or its formula.

The tangents of a call are the results of one more primitive, which is linear: its transpose evaluates the derivative,
and its evaluation, in forward mode, is the linear transpose of the derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, PartitionSpec

from fusedops.declarations import Operator
from fusedops.derivatives import FormulaNames, derivative_of
from fusedops.gradients import GRADIENTS, REFUSED, Gradient
from fusedops.jax import internals, neutral
from fusedops.jax.library import BUILT_IN, TABLE, for_each
from fusedops.jax.operators import OPERATORS
from fusedops.jax.primitives import PRIMITIVES, Call, replaced

FORMULA_NAMES = FormulaNames(neutral.FUNCTIONS, BUILT_IN)
_GRADIENTS: dict[str, Gradient] = {}


@dataclass(frozen=True)
class Pullback:
    """The gradients of a call: a parameter of the linear primitive.

    The primitive's inputs are the tangents of the wanted inputs, then the saved tensors, by name each.
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
        upstream = replaced([None] * len(operator.outputs), self.flowing, dy)
        with jax.numpy_rank_promotion("allow"):
            found = gradient.formula(FORMULA_NAMES.of(operator), context, *upstream)
            return [self._value(name, found.get(name)) for name in self.wanted]

    def _value(self, name: str, gradient: Any) -> Any:
        if gradient is REFUSED:
            raise no_gradient(self.call.operator, name)
        return gradient() if callable(gradient) else gradient


@dataclass(frozen=True)
class PullbackOfTangents:
    """The gradients of the tangents of `first` in tensors that they read: as in Pullback, to any order.

    The saved tensors are those of the tangents, t, and the read ones, s. Since <dy, tangents(t, s)> = <t, first(s, dy)>
    the gradients are those of `first` in s, in reverse mode.
    """

    first: Pullback | PullbackOfTangents
    wanted: tuple[int, ...]  # places in s
    tangents_like: tuple[Any, ...]

    def __call__(self, saved: Sequence[Any], dy: Sequence[Any]) -> list[Any]:
        count = len(self.first.wanted)
        t, s = saved[:count], saved[count:]

        def of_wanted(*values: Any) -> list[Any]:
            return _filled(self.first, replaced(s, self.wanted, values), dy, t)

        return [*jax.vjp(of_wanted, *(s[i] for i in self.wanted))[1]([*t])]


Linear: TypeAlias = Pullback | PullbackOfTangents


def no_gradient(operator: Operator, name: str | None = None) -> Exception:
    what = "there is no gradient" if name is None else f"{name} has no gradient"
    of = name or "its inputs"
    return ValueError(f"fusedops.{operator.function}: {what}; give it jax.lax.stop_gradient(x) of {of}")


_LINEAR = Primitive("fusedops_tangents")
_LINEAR.multiple_results = True


def _tangents(*values: Any, linear: Linear) -> list[Any]:
    values = tuple(_arrays(values))
    given, saved = values[: len(linear.wanted)], values[len(linear.wanted) :]
    transposed = jax.linear_transpose(lambda *dy: _filled(linear, saved, dy, given), *linear.tangents_like)
    return [*transposed([*given])]


def _filled(linear: Linear, saved: Sequence[Any], dy: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    gradients = _evaluated(linear, saved, dy, like)
    return [jnp.zeros_like(x) if g is None else g for g, x in zip(gradients, like, strict=True)]


def _arrays(values: Sequence[Any]) -> list[Any]:
    """The values, with arrays for numbers: JAX passes on a number that a user differentiates in."""
    return [jnp.asarray(x) if isinstance(x, (bool, int, float, np.generic, np.ndarray)) else x for x in values]


def _is_zero(x: Any) -> bool:
    return type(x) is ad.Zero


def _evaluated(linear: Linear, saved: Sequence[Any], dy: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """The gradients, with the shardings in the types of `like`.

    Explicit axes are automatic meanwhile: JAX would refuse a formula's reshape for which several shardings are right.
    """
    shardings = [(x.aval if ad.is_undefined_primal(x) else jax.typeof(x)).sharding for x in like]
    of_tensors = [jax.typeof(x).sharding for x in (*saved, *dy) if x is not None]
    explicit = next((x.mesh for x in (*shardings, *of_tensors) if x.mesh.explicit_axes), None)
    if explicit is None:
        return linear(saved, dy)

    def placed(x: Any, sharding: Any) -> Any:
        """The tensor with this sharding, on the mesh of the others if it is that of an array on none."""
        return jax.sharding.reshard(x, sharding.update(mesh=explicit) if sharding.mesh.empty else sharding)

    # The transpose of a reshard from no mesh to automatic axes would leave a gradient on those.
    given = jax.tree.map(lambda x: placed(x, jax.typeof(x).sharding), ([*saved], [*dy]))
    automatic = explicit.update_axis_types(dict.fromkeys(explicit.explicit_axes, AxisType.Auto))
    with jax.sharding.use_abstract_mesh(automatic):
        gradients = linear(*jax.tree.map(lambda x: jax.sharding.reshard(x, PartitionSpec()), given))
    return [g if g is None else placed(g, x) for g, x in zip(gradients, shardings, strict=True)]


def _transpose(upstream: Sequence[Any], *values: Any, linear: Linear) -> list[Any]:
    if all(map(_is_zero, upstream)):
        return [None] * len(values)
    unknown = [i for i, x in enumerate(values) if ad.is_undefined_primal(x)]
    if unknown[-1] >= len(linear.wanted):  # the transpose in saved tensors, in which tangents may be linear as well

        def of_unknown(*given: Any) -> list[Any]:
            return _tangents(*replaced(values, unknown, given), linear=linear)

        transposed = jax.linear_transpose(of_unknown, *(values[i].aval for i in unknown))
        return replaced([None] * len(values), unknown, transposed([*map(ad.instantiate_zeros, upstream)]))
    upstream, saved = _arrays(upstream), _arrays(values[len(linear.wanted) :])
    dy = [None if _is_zero(dy) else dy for dy in upstream]
    return [*_evaluated(linear, saved, dy, values[: len(linear.wanted)]), *[None] * len(saved)]


def _jvp_of_linear(primals: Sequence[Any], tangents: Sequence[Any], *, linear: Linear) -> tuple[Any, Any]:
    count, primals, tangents = len(linear.wanted), _arrays(primals), _arrays(tangents)
    # A tangent of zeros would need a derivative in tensors that may have none, such as the angles of `rope`.
    moving = [i for i, t in enumerate(tangents[count:]) if not _is_zero(t)]
    terms = []
    if not moving or not all(map(_is_zero, tangents[:count])):
        given = [jnp.zeros_like(p) if _is_zero(t) else t for p, t in zip(primals[:count], tangents, strict=False)]
        terms.append(_LINEAR.bind(*given, *primals[count:], linear=linear))
    if moving:
        second = PullbackOfTangents(linear, tuple(moving), linear.tangents_like)
        terms.append(_LINEAR.bind(*(tangents[count + i] for i in moving), *primals, linear=second))
    return _LINEAR.bind(*primals, linear=linear), [sum(each[1:], each[0]) for each in zip(*terms, strict=True)]


def _batch_of_linear(values: Sequence[Any], dims: Sequence[int | None], *, linear: Linear) -> tuple[Any, Any]:
    results = jax.vmap(lambda *each: _tangents(*each, linear=linear), in_axes=[*dims])(*values)
    return results, [0] * len(results)


internals.needs_devices(_LINEAR)  # the primitives in its lowering do
_LINEAR.def_impl(_tangents)
_LINEAR.def_abstract_eval(lambda *_, linear: [*linear.tangents_like])
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
        found = _LINEAR.bind(*dots.values(), *map(named.__getitem__, pullback.saved), linear=pullback)
        results = [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in outputs]
        return outputs, replaced(results, pullback.flowing, found)

    return jvp


def _transpose_of(operator: Operator) -> Callable[..., Any]:
    """The transpose in the inputs in which a call is linear, as backward operators are in the upstream gradient."""

    def transpose(upstream: Sequence[Any], *values: Any, counts: Any, texts: Any) -> list[Any]:
        call, upstream, values = Call(operator.name, counts, texts), _arrays(upstream), tuple(_arrays(values))
        unknown = [i for i, x in enumerate(values) if ad.is_undefined_primal(x)]
        zeros = [ad.zeros_like_aval(values[i].aval) for i in unknown]
        known = dict(zip(call.given, replaced(values, unknown, zeros), strict=True))
        avals = [dy.aval if _is_zero(dy) else jax.typeof(dy) for dy in upstream]
        pullback = _pullback(call, tuple(call.given[i] for i in unknown), avals)
        dy = [None if _is_zero(upstream[i]) else upstream[i] for i in pullback.flowing]
        saved = [known.get(name) for name in pullback.saved]
        gradients = _evaluated(pullback, saved, dy, [values[i] for i in unknown])
        return replaced([None] * len(values), unknown, gradients)

    return transpose


def _refuse(operator: Operator, *_: Any, **__: Any) -> Any:
    raise no_gradient(operator)


def _register(operator: Operator) -> None:
    primitive = PRIMITIVES[operator.name]
    if not operator.differentiable or not (operator.derivative or operator.name in GRADIENTS):
        ad.primitive_jvps[primitive] = functools.partial(_refuse, operator)
        return
    FORMULA_NAMES.add(operator.name, getattr(OPERATORS, operator.name))
    _GRADIENTS[operator.name] = derivative_of(TABLE, operator)
    ad.primitive_jvps[primitive] = _jvp(operator)
    ad.primitive_transposes[primitive] = _transpose_of(operator)


for_each(_register)
