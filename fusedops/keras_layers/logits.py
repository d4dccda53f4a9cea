"""Logits that only their loss evaluates: the states, and the head that would compute the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from fusedops.conversion import full_name
from fusedops.keras_layers.backend import fo
from fusedops.keras_layers.dense import Dense
from fusedops.keras_layers.internals import AutocastScope, get_keras_mask, made_by, set_keras_mask

_REVERSIBLE = (  # KerasHub has a class of its own; Keras before 3.13 has none
    "keras.src.layers.core.reversible_embedding.ReversibleEmbedding",
    "keras_hub.src.layers.modeling.reversible_embedding.ReversibleEmbedding",
)
_NEEDED = ("embeddings", "input_dim", "logit_soft_cap", "reverse_dtype", "tie_weights")  # of such a layer


@dataclass(frozen=True)
class Head:
    """The layer or operation that makes the output of a functional model.

    Attributes:
        layer: the layer or the operation.
        states: the symbolic tensor that is its first positional argument, if there is one.
        options: the other arguments of the call.
        softcap: c > 0 if the output is c · tanh(y / c) of the layer's y.
    """

    layer: Any
    states: Any
    options: dict[str, Any]
    softcap: float

    @classmethod
    def of(cls, output: Any) -> Head:
        logits, softcap = _uncapped(output)
        layer, arguments, options = made_by(logits)
        return cls(layer, arguments[0] if arguments else None, options, softcap)

    @property
    def _is_reversed(self) -> bool:
        return full_name(type(self.layer)) in _REVERSIBLE and bool(self.options.get("reverse"))

    def why_not(self) -> str | None:
        """The reason why a model with this head computes its logits; None if they are a product with a matrix."""
        layer = self.layer
        if not (self._is_reversed or type(layer) in (keras.layers.Dense, Dense)):
            return f"its head is a {full_name(type(layer))}"
        if self._is_reversed and (missing := [name for name in _NEEDED if not hasattr(layer, name)]):
            return f"its head, in this version, has no attribute {missing[0]}"
        if not isinstance(self.states, keras.KerasTensor):
            return "its head is called with keywords"
        if layer.quantization_mode:
            return f"its head is quantized to {layer.quantization_mode}"
        if layer.activity_regularizer is not None:
            return "its head has an activity regularizer"
        if not self._is_reversed:
            return None if layer.activation is keras.activations.linear else "its head has an activation"
        return "its logits are capped twice" if self.softcap and layer.logit_soft_cap else None

    @property
    def classes(self) -> int:
        return int(self.layer.input_dim if self._is_reversed else self.layer.units)

    @property
    def dtype(self) -> str:
        """The dtype of the logits."""
        own = self._is_reversed and self.layer.reverse_dtype
        return keras.backend.standardize_dtype(own or self.layer.compute_dtype)

    def logits(self, states: Any) -> Any:
        """The output for these states, computed."""
        logits = self.layer(states, **self.options)
        return self.softcap * keras.ops.tanh(logits / self.softcap) if self.softcap else logits

    def mask(self, states: Any) -> Any | None:
        """The mask that Keras would attach to the output."""
        passes_on = self.layer.supports_masking and not self.softcap
        return self.layer.compute_mask(states, get_keras_mask(states)) if passes_on else None

    def loss(self, states: Any, labels: Any, **options: Any) -> Any:
        """The cross-entropy of the rows of the output, with these options of `linear_cross_entropy`."""
        layer, bias, softcap, transposed = self.layer, None, self.softcap, False
        with AutocastScope(layer.compute_dtype):  # as when the layer is called
            if not self._is_reversed:
                weight, bias = layer.kernel, layer.bias
            else:
                softcap, transposed = softcap or layer.logit_soft_cap or 0.0, layer.tie_weights
                weight = layer.embeddings if transposed else layer.reverse_embeddings
            weight, bias = (None if x is None else keras.ops.convert_to_tensor(x) for x in (weight, bias))
        return fo.linear_cross_entropy(
            keras.ops.cast(states, self.dtype),
            keras.ops.cast(weight, self.dtype),
            labels,
            None if bias is None else keras.ops.cast(bias, self.dtype),
            softcap=softcap,
            transpose_weight=transposed,
            **options,
        )


class Logits:
    """Takes the place of logits, for `SparseCategoricalCrossentropy` alone. For other code it is not a tensor."""

    def __init__(self, head: Head, states: Any) -> None:
        self.head, self.states = head, states
        set_keras_mask(self, head.mask(states))

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (*self.states.shape[:-1], self.head.classes)

    @property
    def dtype(self) -> str:
        return self.head.dtype

    def computed(self) -> Any:
        return self.head.logits(self.states)

    def loss(self, labels: Any, **options: Any) -> Any:
        return self.head.loss(self.states, labels, **options)


def _uncapped(output: Any) -> tuple[Any, float]:
    """y and c of an output c · tanh(y / c), as in Gemma 4; otherwise the output itself and 0."""
    tensor, caps = output, []
    for names in (("Multiply",), ("Tanh",), ("Divide", "TrueDivide")):
        operation, arguments, _ = made_by(tensor)
        is_known = full_name(type(operation)) in [f"keras.src.ops.numpy.{name}" for name in names]
        if not is_known or not arguments:  # it may have been called with keywords
            return output, 0.0
        if "Multiply" in names and not isinstance(arguments[0], keras.KerasTensor):  # of c and a tensor
            arguments = arguments[::-1]
        tensor, *others = arguments
        caps += others
        if not isinstance(tensor, keras.KerasTensor):
            return output, 0.0
    is_cap = len(caps) == 2 and all(isinstance(cap, (int, float)) for cap in caps) and caps[0] == caps[1] > 0
    return (tensor, float(caps[0])) if is_cap else (output, 0.0)
