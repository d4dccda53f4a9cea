"""Keras's attention."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras.layer import FusedLayer, register


@register
class MultiHeadAttention(FusedLayer, keras.layers.MultiHeadAttention):
    """Attention whose scores are scaled, masked and normalized in one pass: `fusedops.tf.softmax`.

    The arguments, the weights and the config are those of `keras.layers.MultiHeadAttention`. Scores have the layer's
    compute dtype; 16-bit scores are computed in float32 and rounded once. If there are as many queries as keys,
    causality needs no mask.

    Keras's own code computes attention over axes other than the first after the batch. It also computes masked
    attention without dropout that does not return its scores: there, Keras gives a query that sees no key the mean of
    all values. In all other cases Keras gives such a query zeros, as the kernel does.

    Example:
        >>> layer = fk.MultiHeadAttention(num_heads=2, key_dim=4)
        >>> layer(tf.ones([1, 3, 8]), tf.ones([1, 3, 8]), use_causal_mask=True).shape
        TensorShape([1, 3, 8])

    Source: Vaswani et al., "Attention is all you need", 2017.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        if self._attention_axes not in (None, (1,)):
            return f"attention_axes {self._attention_axes} are not the first after the batch"
        return "flash_attention is set" if self._flash_attention else None

    def _compute_attention_mask(self, query: tf.Tensor, value: tf.Tensor, **options: Any) -> Any:
        masks = [options.get(name) for name in ("query_mask", "value_mask", "key_mask", "attention_mask")]
        window = getattr(self, "_sliding_window", None)  # Keras before 3.15 has none
        square = query is value or (query.shape[1] is not None and query.shape[1] == value.shape[1])
        if (
            options.get("use_causal_mask")
            and all(mask is None for mask in [*masks, window])
            and square
            and len(query.shape) == 3
            and not self.why_not()
            and type(self)._compute_attention is MultiHeadAttention._compute_attention  # only this one knows _CAUSAL
        ):
            return _CAUSAL
        return super()._compute_attention_mask(query, value, **options)

    def _compute_attention(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        **options: Any,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        causal = attention_mask is _CAUSAL
        masked = attention_mask is not None and not causal
        zeros_for_nothing = self._dropout > 0 or return_attention_scores
        if len(query.shape) != 4 or self.why_not() or (masked and not zeros_for_nothing) or options:
            return super()._compute_attention(
                query, key, value, attention_mask, training, return_attention_scores, **options
            )
        scores = keras.ops.einsum(self._dot_product_equation, key, query)
        mask = tf.cast(attention_mask, tf.bool) if masked else None
        if mask is not None and len(mask.shape) == 3:
            mask = mask[:, None]
        shares = fo.softmax(scores, scale=self._inverse_sqrt_key_dim, mask=mask, causal=causal)
        dropped = self._dropout_layer(shares, training=training) if self._dropout > 0 else shares
        return keras.ops.einsum(self._combine_equation, dropped, value), shares


_CAUSAL = "causal"  # used instead of a mask if causality is the only one
