"""The last layer of a classifier and its cross-entropy loss, without the logits between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import keras
import numpy as np

from fusedops.functions.common import Reduction
from fusedops.keras_layers.backend import PACKAGE, fo, own
from fusedops.keras_layers.layer import FusedLayer, register


def ignore_index(ignore_class: int | None) -> int:
    """The functions' ignore_index. None becomes the least label, which no class has: in int64 kIgnoresNone in
    core_cuda/ops/loss/losses_cpu.h."""
    return int(np.iinfo(own.LABELS).min) if ignore_class is None else int(ignore_class)


@register
class LinearCrossEntropyLoss(FusedLayer, keras.layers.Dense):
    """−log softmax(inputs @ kernel + bias)[labels], without the logits: `fusedops.tf.linear_cross_entropy`.

    Without labels, as for inference, the layer returns the logits. The other arguments, the weights and the rest of the
    config are those of `keras.layers.Dense`; there is no activation. In a model, pass the loss on by `add_loss`, or
    make it the output of a model that is compiled with the loss `lambda _, loss: loss`.

    Args:
        ignore_class: rows with this label have zero loss, and do not count in the mean; None: no label is ignored.
        label_smoothing: in [0, 1].
        softcap: c > 0 replaces each logit z by c · tanh(z / c).
        reduction: "mean" over the rows that are not ignored, weighted by `class_weight`; "sum"; or "none".
        class_weight: [units], a number for each class that multiplies its loss; or a dict, as that of `fit`, in which
            classes may be missing, whose number is 1.
        z_loss: z > 0 adds z · (log Σ exp(logits))² to the loss of each row.

    Call arguments:
        inputs: [..., columns].
        labels: [...], int32 or int64: a class in [0, units), or `ignore_class`. None: the logits are returned.
        inputs_mask: bool, [...]; rows where it is False are ignored. Keras passes the mask of the inputs.

    Returns:
        The loss, in float64 for inputs of float64 and in float32 for all others; or logits [..., units] in the layer's
        compute dtype.

    Raises:
        ValueError: `activation` is given, `reduction` is not one of those above, or `class_weight` has a class beyond
            `units`.
        InvalidArgumentError or ValueError: an argument has the wrong shape or dtype, an option is out of
            range; on a CPU also for a label that is neither a class nor `ignore_class`.

    Keras's own code computes the logits of a quantized layer; their loss is then that of `cross_entropy`.

    Example:
        >>> layer = fk.LinearCrossEntropyLoss(2, kernel_initializer="identity", use_bias=False)
        >>> print(layer(tf.constant([[2.0, 1.0]]), tf.constant([0])).numpy().round(4))
        0.3133
    """

    def __init__(
        self,
        units: int,
        *,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        softcap: float = 0.0,
        reduction: Reduction = "mean",
        class_weight: Sequence[float] | Mapping[int, float] | None = None,
        z_loss: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, **kwargs)
        if self.activation is not keras.activations.linear:
            raise ValueError(
                f"{PACKAGE}.keras.LinearCrossEntropyLoss: activation must be None, since the logits are linear; got "
                f"{kwargs['activation']!r}"
            )
        if reduction not in get_args(Reduction):
            choices = ", ".join(get_args(Reduction))
            raise ValueError(
                f"{PACKAGE}.keras.LinearCrossEntropyLoss: reduction must be one of {choices}; got {reduction!r}"
            )
        self.ignore_class = ignore_class
        self.label_smoothing = label_smoothing
        self.softcap = softcap
        self.reduction: Reduction = reduction
        self.class_weight = None if class_weight is None else _numbers(class_weight, units)
        self.z_loss = z_loss

    def why_not(self, inputs: Any = None) -> str | None:
        return f"it is quantized to {self.quantization_mode}" if self.quantization_mode else None

    def call(self, inputs: Any, labels: Any = None, inputs_mask: Any = None, training: bool | None = None) -> Any:
        if labels is None:
            return self._logits(inputs, training)
        ignored = ignore_index(self.ignore_class)
        labels = keras.ops.cast(labels, own.LABELS)
        if inputs_mask is not None:
            labels = keras.ops.where(inputs_mask, labels, keras.ops.full_like(labels, ignored))
        weight = self.class_weight
        options: dict[str, Any] = {
            "ignore_index": ignored,
            "label_smoothing": self.label_smoothing,
            "reduction": self.reduction,
            "class_weight": None if weight is None else keras.ops.convert_to_tensor(weight, "float32"),
            "z_loss": self.z_loss,
        }
        if self.why_not():
            return fo.cross_entropy(self._logits(inputs, training), labels, **options)
        return fo.linear_cross_entropy(
            inputs,
            keras.ops.convert_to_tensor(self.kernel),
            labels,
            None if self.bias is None else keras.ops.convert_to_tensor(self.bias),
            softcap=self.softcap,
            transpose_weight=False,
            **options,
        )

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def _logits(self, inputs: Any, training: bool | None) -> Any:
        compute = super().quantized_call if self.quantization_mode else super().call
        logits = compute(inputs, training=training)
        return self.softcap * keras.ops.tanh(logits / self.softcap) if self.softcap else logits

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """A loss has none."""

    def compute_output_spec(
        self, inputs: Any, labels: Any = None, inputs_mask: Any = None, training: Any = None
    ) -> Any:
        if labels is None:
            return super().compute_output_spec(inputs)
        shape = labels.shape if self.reduction == "none" else ()
        return keras.KerasTensor(shape, dtype="float64" if self.compute_dtype == "float64" else "float32")

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["activation"]
        return {
            **config,
            "ignore_class": self.ignore_class,
            "label_smoothing": self.label_smoothing,
            "softcap": self.softcap,
            "reduction": self.reduction,
            "class_weight": self.class_weight,
            "z_loss": self.z_loss,
        }


def _numbers(weights: Sequence[float] | Mapping[int, float], classes: int) -> list[float]:
    """The weight of each class."""
    if not isinstance(weights, Mapping):
        return [float(weight) for weight in weights]
    unknown = [each for each in weights if each not in range(classes)]
    if unknown:
        raise ValueError(
            f"{PACKAGE}.keras.LinearCrossEntropyLoss: class_weight must have classes in [0, {classes}); got "
            f"{unknown[0]!r}"
        )
    return [float(weights.get(each, 1.0)) for each in range(classes)]
