"""Keras's attention layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras import internals
from fusedops.tf.keras.dense import EinsumDense
from fusedops.tf.keras.kept import Kept, attend, fit, keras_mask, of_heads, of_pairs, too_many
from fusedops.tf.keras.layer import FusedLayer, register


class _FusedAttention(FusedLayer):
    """What both layers share."""

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        for layer in internals.layers(self):  # its projections, and what a subclass has added
            if type(layer) is keras.layers.EinsumDense:
                internals.become(layer, EinsumDense)

    @property
    def _window(self) -> int | None:
        """Keras's name for it differs, and before Keras 3.15 there is none."""
        return vars(self).get("_sliding_window", vars(self).get("sliding_window"))

    def _takes_kept(self) -> bool:
        """Whether `_compute_attention` is ours: only that takes something else than a mask."""
        ours = (MultiHeadAttention._compute_attention, GroupQueryAttention._compute_attention)
        return type(self)._compute_attention in ours

    def _compute_attention_mask(self, query: tf.Tensor, value: tf.Tensor, **options: Any) -> Any:
        everything = partial(super()._compute_attention_mask, query, value, **options)
        if not self._takes_kept() or self.why_not() or len(query.shape) != 3 or len(value.shape) != 3:
            return everything()
        queries, values, keys, pairs = (
            options.get(name) for name in ("query_mask", "value_mask", "key_mask", "attention_mask")
        )
        causal = bool(options.get("use_causal_mask"))
        square = query is value or (query.shape[1] is not None and query.shape[1] == value.shape[1])
        # As many queries as keys: Keras counts positions from the first ones, the kernel from the last ones.
        is_positional = square if causal else self._window is None
        if pairs is not None or not is_positional:
            return replace(of_pairs(everything()), causal=causal and square)
        of_keys = [tf.cast(mask, tf.bool) for mask in (values, keys) if mask is not None]
        return Kept(
            everything,
            causal=causal,
            window=self._window,
            keys=tf.logical_and(*of_keys) if len(of_keys) == 2 else of_keys[0] if of_keys else None,
            queries=None if queries is None else tf.cast(queries, tf.bool),
        )

    def _attend(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: Any, scale: float, training: Any
    ) -> tf.Tensor:
        rate, layer = self.dropout if training else 0.0, self._dropout_layer
        mean = self.dropout == 0
        return attend(query, key, value, mask, scale, dropout=rate, dropout_layer=layer, mean_of_nothing=mean)

    def _with_shares(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: Any, scale: float, training: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """With the probabilities, which are returned, as a tensor."""
        causal = isinstance(mask, Kept) and mask.causal and mask.window is None and mask.is_positional
        kept = None if causal else keras_mask(mask)
        if kept is not None:
            kept = of_heads(tf.cast(kept, tf.bool))
        scores = tf.einsum("bthd,bshd->bhts", query, key)
        shares = fo.softmax(scores, scale=scale, mask=kept, causal=causal)
        dropped = self._dropout_layer(shares, training=training) if self.dropout > 0 else shares
        return tf.einsum("bhts,bshd->bthd", dropped, value), shares


@register
class MultiHeadAttention(_FusedAttention, keras.layers.MultiHeadAttention):
    """Attention in one pass, without a matrix of scores: `fusedops.tf.attention`.

    The arguments, the weights, the config and the masks are those of `keras.layers.MultiHeadAttention`. If there are as
    many queries as keys, causality needs no mask, nor does a `sliding_window` beside it; masks of queries, keys and
    values are never multiplied to one of all pairs. `flash_attention=True`, which Keras refuses over TensorFlow,
    changes nothing: it is always like that.

    Attention that returns its scores has to have them: their softmax, with scale and mask, is one pass,
    `fusedops.tf.softmax`. Otherwise `dropout` drops some of them by the kernel's own random numbers: others than
    Keras's, from the state of the layer's generator. Keras's own code computes attention over axes other than the first
    after the batch, and heads of more than 256 features.

    A query that sees no key gets what Keras gives it: the mean of all values, but zeros from a layer with dropout or
    with scores.

    Example:
        >>> layer = fk.MultiHeadAttention(num_heads=2, key_dim=4)
        >>> layer(tf.ones([1, 3, 8]), tf.ones([1, 3, 8]), use_causal_mask=True).shape
        TensorShape([1, 3, 8])

    Source: Vaswani et al., "Attention is all you need", 2017.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        if self._attention_axes not in (None, (1,)):
            return f"attention_axes {self._attention_axes} are not the first after the batch"
        return too_many(key_dim=self._key_dim, value_dim=self._value_dim)

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
        refused = return_attention_scores and self._flash_attention
        if self.why_not() or refused or options or not fit(query, key, value):
            return super()._compute_attention(
                query, key, value, keras_mask(attention_mask), training, return_attention_scores, **options
            )
        scale = self._inverse_sqrt_key_dim
        if return_attention_scores:
            return self._with_shares(query, key, value, attention_mask, scale, training)
        return self._attend(query, key, value, attention_mask, scale, training), None


@register
class GroupQueryAttention(_FusedAttention, keras.layers.GroupQueryAttention):
    """Attention whose heads share keys and values, in one pass: `fusedops.tf.attention`.

    The arguments, the weights, the config and the masks are those of `keras.layers.GroupQueryAttention`. Keys and
    values are not repeated for the heads that share them. All else is as in `MultiHeadAttention`: when a mask is
    needed, what a query gets that sees no key, `flash_attention=True`, dropout, scores that are returned, for which
    keys and values are repeated, and heads of more than 256 features.

    Example:
        >>> layer = fk.GroupQueryAttention(head_dim=4, num_query_heads=4, num_key_value_heads=2)
        >>> layer(tf.ones([1, 3, 8]), tf.ones([1, 3, 8]), use_causal_mask=True).shape
        TensorShape([1, 3, 8])

    Source: Ainslie et al., "GQA: training generalized multi-query transformer models from multi-head checkpoints",
    2023.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        return too_many(head_dim=self.head_dim)

    def call(
        self,
        query: tf.Tensor,
        value: tf.Tensor,
        key: tf.Tensor | None = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        self._return_attention_scores = return_attention_scores
        mask = self._compute_attention_mask(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
        )
        gate = self._gate_dense(query) if getattr(self, "use_gate", False) else None
        q, k, v = self._query_dense(query), self._key_dense(value if key is None else key), self._value_dense(value)
        if self._computes_directly(return_attention_scores) and fit(q, k, v):
            output, shares = self._attend(q, k, v, mask, self._inverse_sqrt_head_dim, training), None
        else:
            k, v = (tf.repeat(x, self.num_repeats, 2) for x in (k, v))
            output, shares = self._compute_attention(q, k, v, attention_mask=mask, training=training)
        output = self._output_dense(output if gate is None else output * gate)
        return (output, shares) if return_attention_scores else output

    def _computes_directly(self, return_attention_scores: bool) -> bool:
        """Whether the kernel takes keys and values as they are, without a head for each of the queries'."""
        return not return_attention_scores and self._takes_kept() and self.why_not() is None

    def _compute_attention(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        attention_mask: Any = None,
        training: bool | None = None,
        **options: Any,
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        scores = self._return_attention_scores
        refused = scores and self._flash_attention
        if self.why_not() or refused or options or not fit(query, key, value):
            return super()._compute_attention(
                query, key, value, attention_mask=keras_mask(attention_mask), training=training, **options
            )
        scale = self._inverse_sqrt_head_dim
        if scores:
            return self._with_shares(query, key, value, attention_mask, scale, training)
        return self._attend(query, key, value, attention_mask, scale, training), None
