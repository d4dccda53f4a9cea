"""A residual connection and the normalization of its sum, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from fusedops.arguments import given
from fusedops.keras_layers.backend import PACKAGE
from fusedops.keras_layers.dropout import next_seed
from fusedops.keras_layers.layer import register
from fusedops.keras_layers.normalization import LayerNormalization, RMSNormalization
from fusedops.keras_layers.pairs import one_shape, pair, sum_of


class _AddNormalization:
    """A layer of two inputs and two outputs, all of one shape. The outputs have the mask of x."""

    _arity = 2

    def __init__(self, *args: Any, dropout: float = 0.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= dropout < 1:
            name = type(self).__name__
            raise ValueError(f"{PACKAGE}.keras.{name}: dropout must be a probability in [0, 1); got {dropout!r}")
        self.autocast = True  # both inputs are cast to one dtype
        self.dropout, self.seed = dropout, seed
        if dropout > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: Any) -> None:
        super().build(one_shape(input_shape))  # type: ignore[misc]

    def call(self, inputs: Any, residual: Any | None = None, training: bool = False) -> tuple[Any, Any]:
        x, residual = pair(inputs, residual)
        rate = self.dropout if training else 0.0
        if not self.why_not(x):  # type: ignore[attr-defined]
            return self._fused(x, residual, rate, next_seed(self) if rate else None)  # type: ignore[attr-defined]
        if rate:
            x = keras.random.dropout(x, rate, seed=self.seed_generator)
        s = sum_of(x, residual)
        return super().call(s), s  # type: ignore[misc]

    def _is_plain(self) -> bool:
        return not self.dropout and super()._is_plain()  # type: ignore[misc]

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = tuple(one_shape(input_shape))
        return shape, shape

    def compute_output_spec(self, inputs: Any, residual: Any = None, training: Any = None) -> Any:
        x, _ = pair(inputs, residual)
        return tuple(keras.KerasTensor(x.shape, self.compute_dtype) for _ in range(2))  # type: ignore[attr-defined]

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        mask = previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask
        return mask, mask

    def get_build_config(self) -> Any:
        config = super().get_build_config()  # type: ignore[misc]
        return config and {"input_shape": one_shape(config["input_shape"])}

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return {**config, "dropout": self.dropout, "seed": self.seed}


@register
class AddRMSNormalization(_AddNormalization, RMSNormalization):
    """(rms_normalization(s), s) with s = x + residual, or dropout(x) + residual: `fusedops.tf.add_rms_norm`.

    The other arguments and the weights are those of `RMSNormalization`, and Keras's own code computes the same cases.

    Args:
        dropout: the probability with which an element of x is dropped in training, from 0 to below 1.
        seed: an integer, of the layer's seed generator, as in `Dropout`.

    Call arguments:
        x, residual: two tensors of one shape, as two arguments or as one list; both are cast to the layer's compute
            dtype.
        training: whether to drop.

    Returns:
        Two tensors of x's shape, with the mask of x. s is rounded to the layer's compute dtype before it is normalized.

    Example:
        >>> y, s = fk.AddRMSNormalization()(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[0.8485, 1.1314]], dtype=float32), array([[3., 4.]], dtype=float32))
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-6,
        *,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**given(locals()))

    _fused = RMSNormalization.fused_add  # type: ignore[assignment]


@register
class AddLayerNormalization(_AddNormalization, LayerNormalization):
    """(layer_normalization(s), s) with s = x + residual, or dropout(x) + residual: `fusedops.tf.add_layer_norm`.

    The other arguments and the weights are those of `LayerNormalization`. All else is as in `AddRMSNormalization`.

    Example:
        >>> y, s = fk.AddLayerNormalization(epsilon=1e-5)(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[-1.,  1.]], dtype=float32), array([[3., 4.]], dtype=float32))
    """

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        *,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**given(locals()))

    _fused = LayerNormalization.fused_add  # type: ignore[assignment]
