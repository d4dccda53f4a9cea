"""Dropout, alone and before a residual connection."""

from __future__ import annotations

from typing import Any

import keras

from fusedops.keras_layers.backend import fo, own
from fusedops.keras_layers.layer import FusedLayer, register, unfused_input
from fusedops.keras_layers.pairs import one_shape, pair, sum_of


@register
class Dropout(FusedLayer, keras.layers.Dropout):
    """inputs / (1 − rate) where an element is kept, else 0, in training: `fusedops.tf.dropout`, which stores no mask.

    The arguments and the config are those of `keras.layers.Dropout`. The seeds are those of the layer's seed generator,
    so that keras.utils.set_random_seed repeats a run; which elements are dropped with a seed is not what Keras drops
    with it.

    Call arguments:
        inputs: float64, float32, float16 or bfloat16, any shape.
        training: whether to drop.

    Returns:
        A tensor of the inputs' shape and dtype; without training the inputs themselves.

    Keras's own code computes `noise_shape`, rates of 0 and of 1, other dtypes and ragged tensors.

    Example:
        >>> fk.Dropout(0.1)(tf.constant([1.0, 2.0])).numpy()
        array([1., 2.], dtype=float32)
        >>> fk.Dropout(0.1, noise_shape=(1, 8)).why_not()
        'noise_shape is set'

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        if self.noise_shape is not None:
            return "noise_shape is set"
        return _unfused_rate(self.rate) or unfused_input(inputs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training or self.why_not(inputs):
            return super().call(inputs, training=training)
        return fo.dropout(inputs, self.rate, next_seed(self))


@register
class DropoutAdd(FusedLayer, keras.layers.Dropout):
    """residual + dropout(x) in training, residual + x without: `fusedops.tf.dropout_add`.

    Args:
        rate: the probability with which an element of x is dropped, from 0 to 1.
        seed: an integer, of the layer's seed generator.

    Call arguments:
        x, residual: two tensors of one shape, as two arguments or as one list; both are cast to the layer's compute
            dtype.
        training: whether to drop.

    Returns:
        A tensor of x's shape, with the mask of x. 16-bit inputs are computed in float32 and rounded once.

    Keras's own code computes a rate of 1, other dtypes and ragged tensors. `Dropout` says what a seed does.

    Example:
        >>> fk.DropoutAdd(0.1)(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])).numpy()
        array([4., 6.], dtype=float32)
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(rate, seed=seed, **kwargs)

    def why_not(self, inputs: Any = None) -> str | None:
        return _unfused_rate(self.rate) or unfused_input(inputs)

    def call(self, inputs: Any, residual: Any | None = None, training: bool = False) -> Any:
        x, residual = pair(inputs, residual)
        if training and not self.why_not(x):
            return fo.dropout_add(x, residual, self.rate, next_seed(self))
        return sum_of(super().call(x, training=training), residual)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(one_shape(input_shape))

    def compute_output_spec(self, inputs: Any, residual: Any = None, training: Any = None) -> Any:
        x, _ = pair(inputs, residual)
        return keras.KerasTensor(x.shape, self.compute_dtype)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        del config["noise_shape"]
        return config


def next_seed(layer: Any) -> Any:
    """The next seed of the layer's generator, which Keras saves: its key, and the number of earlier draws."""
    return own.seed_of(layer.seed_generator)


def _unfused_rate(rate: float) -> str | None:
    """The reason why the kernel does not drop at this rate; None if it does."""
    if rate == 0:
        return "rate is 0: it drops nothing"
    return "rate is 1: it drops everything" if rate == 1 else None


def pending_dropout(dropout: Any, x: Any, residual: Any, training: bool | None) -> tuple[Any, float, Any | None]:
    """x, and the rate and seed of a dropout that the kernel still has to apply. Any other is applied here."""
    is_plain = (
        type(dropout) is Dropout and "call" not in vars(dropout) and dropout.compute_dtype == own.name_of(x.dtype)
    )
    if is_plain and training and x.dtype == residual.dtype and not dropout.why_not(x):
        return x, dropout.rate, next_seed(dropout)
    return dropout(x, training=training), 0.0, None


def add(x: Any, residual: Any, dropout: Any, training: bool | None) -> Any:
    """residual + dropout(x), in one pass if the layer is ours."""
    x, rate, seed = pending_dropout(dropout, x, residual, training)
    return fo.dropout_add(x, residual, rate, seed) if rate else x + residual
