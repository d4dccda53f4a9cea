"""Registers the gradient of every operator with TensorFlow: its declared derivative, or its formula."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from fusedops.declarations import Operator
from fusedops.derivatives import FormulaNames, derivative_of
from fusedops.gradients import GRADIENTS
from fusedops.tf import neutral, steps
from fusedops.tf.calls import is_constant, no_gradient
from fusedops.tf.library import BUILT_IN, TABLE, decoded, for_each
from fusedops.tf.operators import OPERATORS

FORMULA_NAMES = FormulaNames(neutral.FUNCTIONS, BUILT_IN)
_Evaluation = Callable[..., Sequence[Any]]


def _register(operator: Operator) -> None:
    if operator.has_effects_or_lists:
        return  # TensorFlow raises that there is no gradient
    FORMULA_NAMES.add(operator.name, getattr(OPERATORS, operator.name))
    optional = [f"N_{x.name}" for x in operator.inputs if x.kind == "optional"]
    asked = [*optional, *(f"T_{x.name}" for x in operator.inputs), *(x.name for x in operator.attributes)]

    @functools.lru_cache
    def evaluation(pairs: tuple[Any, ...], skipped: tuple[int, ...]) -> _Evaluation:
        """The gradient function of nodes with these attributes, for the inputs that are not skipped."""
        attributes = dict(zip(pairs[::2], pairs[1::2], strict=True))
        inputs = [x.name for x in operator.inputs if x.kind != "optional" or attributes[f"N_{x.name}"] == 1]
        # A tape also watches masks that are computed from watched tensors.
        floating = {name for name in inputs if tf.as_dtype(attributes[f"T_{name}"]).is_floating}
        wanted = [name for i, name in enumerate(inputs) if i not in skipped and name in floating]
        make = steps.evaluation if operator.derivative else _of_formula
        return make(operator, attributes, inputs, wanted)

    @tf.RegisterGradient(operator.type)
    def gradient(op: Any, *upstream: Any) -> Sequence[Any]:
        pairs = getattr(op, "attrs", None)  # of a tape: names and values in turn
        if not isinstance(pairs, tuple):
            pairs = tuple(itertools.chain.from_iterable((name, op.get_attr(name)) for name in asked))
        skipped = getattr(op, "skip_input_indices", None) or ()  # of a tape: inputs that it does not watch
        if isinstance(op, tf.Operation):
            skipped = tuple(i for i, x in enumerate(op.inputs) if is_constant(x))
        return evaluation(pairs, skipped)(op, *upstream)


def _of_formula(
    operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[str], wanted: Sequence[str]
) -> _Evaluation:
    if operator.name not in GRADIENTS:
        raise no_gradient(operator)
    derivative = derivative_of(TABLE, operator)
    options = {x.name: decoded(x, attributes[x.name]) for x in operator.attributes}
    names = [*inputs, *(x.name for x in operator.outputs)]
    functions = FORMULA_NAMES.of(operator)

    def evaluate(op: Any, *upstream: Any) -> Sequence[Any]:
        tensors = dict(zip(names, (*op.inputs, *op.outputs), strict=True))
        saved = {name: tensors.get(name) for name in derivative.saves}  # an optional input may be absent
        context = SimpleNamespace(**options, **saved, wanted=wanted.__contains__)
        gradients = derivative.formula(functions, context, *map(steps.dense, upstream))
        values = [gradients.get(name) if name in wanted else None for name in inputs]
        return [value() if callable(value) else value for value in values]

    return evaluate


@functools.cache
def _unread() -> tf.Tensor:
    with tf.init_scope(), tf.device("/CPU:0"):  # costs nothing there, whatever runs now
        return tf.constant(0.0)


@tf.RegisterGradient("FusedopsKeep")
def _of_keep(op: Any, dy: tf.Tensor) -> Sequence[Any]:
    return [dy, *[_unread()] * (len(op.inputs) - 1)]


for_each(_register)
