"""Every operator of the core as a function of JAX's arrays.

An operator is called as `operator(*inputs, **attributes)`, with inputs in declared order: arrays, None for an absent
optional input, a number for a scalar, a sequence of arrays for a list. It returns its outputs and, after them, the new
values of its mutated inputs: JAX's arrays cannot be written in place. `jax.jit` with donated arguments can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp

from fusedops import checks
from fusedops.declarations import Input, Operator
from fusedops.jax.library import array, for_each
from fusedops.jax.primitives import Call, bind
from fusedops.jax.tensors import is_array

if TYPE_CHECKING:
    from fusedops.functions.operators import Operators


def _array(operator: Operator, input: Input, value: Any) -> Any:
    if not is_array(value):
        raise checks.not_a_tensor(operator, input, value)
    return array(value)


def constant(number: float, dtype: Any, rank: int = 0) -> Any:
    """A number, or an array of a weak type, for use with arrays of this dtype: float64 beside float64, else float32."""
    shape = jnp.shape(number) or (1,) * rank
    return jnp.full(shape, number, jnp.float64 if dtype == jnp.float64 else jnp.float32)


def _is_weak(x: Any) -> bool:
    """True for a real number, and for an array that JAX made from one, so that its dtype is not the user's."""
    return not is_array(x) or (getattr(x, "weak_type", False) and not jnp.iscomplexobj(x))


def _inputs(operator: Operator, values: Sequence[Any]) -> list[list[Any]]:
    """The arrays of each input."""
    padded = [*values, *[None] * (len(operator.inputs) - len(values))]
    found = []
    for x, value in zip(operator.inputs, padded, strict=True):
        if x.kind == "list":
            if not isinstance(value, (list, tuple)):
                raise checks.not_a_tensor(operator, x, value)
            found.append([_array(operator, x, item) for item in value])
        elif x.kind == "optional" and value is None:
            found.append([])
        elif x.kind == "scalar" and checks.is_number(value):
            found.append([checks.number(operator, x, value)])
        else:
            found.append([_array(operator, x, value)])
    leading = found[operator.leading]
    if not leading:
        name = operator.inputs[operator.leading].name
        raise ValueError(f"fusedops.{operator.function}: {name} must have at least one tensor; got none")
    typed = [x.dtype for items in (leading, *found) for x in items if not _is_weak(x)]
    dtype = next((x for x in typed if jnp.issubdtype(x, jnp.floating)), leading[0].dtype)

    def typed_as(x: Any, v: Any) -> Any:
        if x.kind == "scalar":
            return constant(v, dtype) if _is_weak(v) else v
        return v.astype(dtype) if _is_weak(v) and v.dtype == jnp.float64 else v

    return [[typed_as(x, v) for v in items] for x, items in zip(operator.inputs, found, strict=True)]


def _texts(operator: Operator, attributes: dict[str, Any]) -> tuple[str, ...]:
    texts = []
    for a in operator.attributes:
        value = attributes.pop(a.name, a.default)
        checks.check_attribute(operator, a, value)
        texts.append(a.spelled(value))
    for name in attributes:
        raise TypeError(checks.unexpected_keyword(operator.name, name))
    return tuple(texts)


def _function(operator: Operator) -> Callable[..., Any]:
    def function(*values: Any, **attributes: Any) -> Any:
        inputs = _inputs(operator, values)
        call = Call(operator.name, tuple(map(len, inputs)), _texts(operator, attributes))
        results = bind(call, [x for items in inputs for x in items])
        outputs, rest = results[: len(operator.outputs)], iter(results[len(operator.outputs) :])
        for x, items in zip(operator.inputs, inputs, strict=True):
            if x.updated:
                new = [next(rest) for _ in items]
                outputs.append(new if x.kind == "list" else new[0] if new else None)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    function.__name__ = function.__qualname__ = operator.name
    return function


OPERATORS = cast("Operators", SimpleNamespace())


for_each(lambda operator: setattr(OPERATORS, operator.name, _function(operator)))
