"""Registers the gradient of every operator with TensorFlow, from its row of the table, or its formula."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from fusedops.declarations import Attribute, Operator
from fusedops.derivatives import derivative_of
from fusedops.gradients import REFUSED, Gradient
from fusedops.tf import neutral
from fusedops.tf.calls import is_constant
from fusedops.tf.operators import DECLARED, OPERATORS

_FUNCTIONS = SimpleNamespace(**vars(OPERATORS), **neutral.FUNCTIONS)


class _Node:
    """What a formula may ask that does not change from call to call with the same attributes; places are in a node's
    inputs and outputs."""

    def __init__(self, operator: Operator, saves: Iterable[str], attributes: Mapping[str, Any]) -> None:
        self.attributes = {x.name: _decoded(x, attributes[x.name]) for x in operator.attributes}
        self.names = [x.name for x in operator.inputs if x.kind != "optional" or attributes[f"N_{x.name}"] == 1]
        self.inputs = list(enumerate(self.names))
        tensors = [*self.names, *(x.name for x in operator.outputs)]
        # An optional input may be absent.
        self.saved = [(name, tensors.index(name) if name in tensors else None) for name in saves]


def _decoded(attribute: Attribute, value: Any) -> Any:
    """An attribute of an OpDef as the Python value that was given for it."""
    if attribute.type in ("bool", "int"):
        return value
    text = value.decode() if isinstance(value, bytes) else value
    if attribute.type == "float":
        return float(text)
    if attribute.type == "floats":
        return tuple(float(number) for number in text.strip(" []").split(",") if number.strip())
    return text


def _register(operator: Operator, derivative: Gradient) -> None:
    optional = [f"N_{x.name}" for x in operator.inputs if x.kind == "optional"]
    asked = [*optional, *(x.name for x in operator.attributes)]

    @functools.lru_cache
    def node_of(*pairs: Any) -> _Node:
        return _Node(operator, derivative.saves, dict(zip(pairs[::2], pairs[1::2], strict=True)))

    def node(op: Any) -> _Node:
        pairs = getattr(op, "attrs", None)  # a tape has them at hand: names and values in turn
        if not isinstance(pairs, tuple):
            pairs = tuple(itertools.chain.from_iterable((name, op.get_attr(name)) for name in asked))
        return node_of(*pairs)

    @tf.RegisterGradient(operator.op_type)
    def gradient(op: Any, *upstream: Any) -> Sequence[Any]:
        known = node(op)
        inputs = op.inputs
        tensors = (*inputs, *op.outputs)
        skipped = getattr(op, "skip_input_indices", None) or ()  # a tape knows what it does not watch
        if isinstance(op, tf.Operation):
            skipped = [i for i, x in enumerate(inputs) if is_constant(x)]
        wanted = [name for i, name in known.inputs if i not in skipped] if skipped else known.names
        saved = {name: None if place is None else tensors[place] for name, place in known.saved}
        context = SimpleNamespace(**known.attributes, **saved, wanted=wanted.__contains__)
        values = derivative.formula(_FUNCTIONS, context, *map(_dense, upstream))
        results = []
        for name in known.names:
            value = values.get(name) if name in wanted else None
            # A graph asks for the gradient of everything: None says that there is none, as for integers.
            if value is REFUSED:
                value = None
            results.append(value() if callable(value) else value)
        return results


@functools.cache
def _unread() -> tf.Tensor:
    with tf.init_scope(), tf.device("/CPU:0"):  # where it costs nothing, whatever is being computed
        return tf.constant(0.0)


@tf.RegisterGradient("FusedopsKeep")
def _of_keep(op: Any, dy: tf.Tensor) -> Sequence[Any]:
    return [dy, *[_unread()] * (len(op.inputs) - 1)]


def _dense(dy: Any) -> tf.Tensor | None:
    return dy if dy is None or isinstance(dy, tf.Tensor) else tf.convert_to_tensor(dy)


for _operator in DECLARED.values():
    _register(_operator, derivative_of(DECLARED, _operator))
