"""Keras's attention layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import keras
from keras import ops

from fusedops.keras_layers import internals
from fusedops.keras_layers.backend import fo
from fusedops.keras_layers.dense import EinsumDense
from fusedops.keras_layers.layer import FusedLayer, register
from fusedops.keras_layers.visibility import (
    Visibility,
    attend,
    can_attend,
    from_mask,
    keras_mask,
    unsupported_heads,
    with_heads,
)


class _FusedAttention(FusedLayer):
    """Base of both attention layers."""

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        for layer in internals.layers(self):  # projections, and layers of subclasses
            if type(layer) is keras.layers.EinsumDense:
                internals.become(layer, EinsumDense)

    @property
    def _window(self) -> int | None:
        """The window, whose attribute has two names in Keras; before Keras 3.15 there is none."""
        return vars(self).get("_sliding_window", vars(self).get("sliding_window"))

    def _takes_visibility(self) -> bool:
        """True if `_compute_attention` is ours: only ours takes a `Visibility` in place of a mask."""
        ours = (MultiHeadAttention._compute_attention, GroupQueryAttention._compute_attention)
        return type(self)._compute_attention in ours

    def _compute_attention_mask(self, query: Any, value: Any, **options: Any) -> Any:
        make_mask = partial(super()._compute_attention_mask, query, value, **options)
        if not self._takes_visibility() or self.why_not() or len(query.shape) != 3 or len(value.shape) != 3:
            return make_mask()
        queries, values, keys, pairs = (
            options.get(name) for name in ("query_mask", "value_mask", "key_mask", "attention_mask")
        )
        causal = bool(options.get("use_causal_mask"))
        square = query is value or (query.shape[1] is not None and query.shape[1] == value.shape[1])
        # If the numbers of queries and keys differ, Keras aligns the first positions, and the kernel the last ones.
        is_positional = square if causal else self._window is None
        if pairs is not None or not is_positional:
            return replace(from_mask(make_mask()), causal=causal and square)
        of_keys = [ops.cast(mask, "bool") for mask in (values, keys) if mask is not None]
        return Visibility(
            make_mask,
            causal=causal,
            window=self._window,
            keys=ops.logical_and(*of_keys) if len(of_keys) == 2 else of_keys[0] if of_keys else None,
            queries=None if queries is None else ops.cast(queries, "bool"),
        )

    def _fused(self, query: Any, key: Any, value: Any, with_scores: bool, options: Any) -> Callable[..., Any] | None:
        """The method that computes this call, or None if Keras's own code does."""
        refused = with_scores and self._flash_attention
        if self.why_not() or refused or options or not can_attend(query, key, value):
            return None
        return self._with_probabilities if with_scores else self._attend

    def _attend(self, query: Any, key: Any, value: Any, mask: Any, scale: float, training: Any) -> tuple[Any, None]:
        rate, layer = self.dropout if training else 0.0, self._dropout_layer
        mean = self.dropout == 0
        return attend(query, key, value, mask, scale, dropout=rate, dropout_layer=layer, average_if_masked=mean), None

    def _with_probabilities(
        self, query: Any, key: Any, value: Any, mask: Any, scale: float, training: Any
    ) -> tuple[Any, Any]:
        """Attention and its probabilities."""
        causal = isinstance(mask, Visibility) and mask.causal and mask.window is None and mask.is_positional
        visible = None if causal else keras_mask(mask)
        if visible is not None:
            visible = with_heads(ops.cast(visible, "bool"))
        scores = ops.einsum("bthd,bshd->bhts", query, key)
        probabilities = fo.softmax(scores, scale=scale, mask=visible, causal=causal)
        dropped = self._dropout_layer(probabilities, training=training) if self.dropout > 0 else probabilities
        return ops.einsum("bhts,bshd->bthd", dropped, value), probabilities


@register
class MultiHeadAttention(_FusedAttention, keras.layers.MultiHeadAttention):
    """Attention in one pass, without a matrix of scores: the operator `attention`.

    The arguments, the weights, the config and the masks are those of `keras.layers.MultiHeadAttention`. If there are as
    many queries as keys, causality needs no mask, nor does a `sliding_window` beside it; masks of queries, keys and
    values are never multiplied to one of all pairs. `flash_attention=True`, which Keras refuses over TensorFlow,
    changes nothing: it is always like that.

    Attention that returns its scores has to have them: their softmax, with scale and mask, is one pass,
    the operator `softmax`. Otherwise `dropout` drops some of them by the kernel's own random numbers: others than
    Keras's, from the state of the layer's generator. Keras's own code computes attention over axes other than the first
    after the batch, and heads of more than 576 features.

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
        return unsupported_heads(key_dim=self._key_dim, value_dim=self._value_dim)

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        **options: Any,
    ) -> tuple[Any, Any]:
        attention = self._fused(query, key, value, return_attention_scores, options)
        if attention is None:
            return super()._compute_attention(
                query, key, value, keras_mask(attention_mask), training, return_attention_scores, **options
            )
        return attention(query, key, value, attention_mask, self._inverse_sqrt_key_dim, training)


@register
class GroupQueryAttention(_FusedAttention, keras.layers.GroupQueryAttention):
    """Attention whose heads share keys and values, in one pass: the operator `attention`.

    The arguments, the weights, the config and the masks are those of `keras.layers.GroupQueryAttention`. Keys and
    values are not repeated for the heads that share them. All else is as in `MultiHeadAttention`: when a mask is
    needed, what a query gets that sees no key, `flash_attention=True`, dropout, scores that are returned, for which
    keys and values are repeated, and heads of more than 576 features.

    Example:
        >>> layer = fk.GroupQueryAttention(head_dim=4, num_query_heads=4, num_key_value_heads=2)
        >>> layer(tf.ones([1, 3, 8]), tf.ones([1, 3, 8]), use_causal_mask=True).shape
        TensorShape([1, 3, 8])

    Source: Ainslie et al., "GQA: training generalized multi-query transformer models from multi-head checkpoints",
    2023.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        return unsupported_heads(head_dim=self.head_dim)

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
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
        if self._computes_directly(return_attention_scores) and can_attend(q, k, v):
            output, probabilities = self._attend(q, k, v, mask, self._inverse_sqrt_head_dim, training)
        else:
            k, v = (ops.repeat(x, self.num_repeats, 2) for x in (k, v))
            output, probabilities = self._compute_attention(q, k, v, attention_mask=mask, training=training)
        output = self._output_dense(output if gate is None else output * gate)
        return (output, probabilities) if return_attention_scores else output

    def _computes_directly(self, return_attention_scores: bool) -> bool:
        """True if the kernel takes keys and values without repeating them for the queries' heads."""
        return not return_attention_scores and self._takes_visibility() and self.why_not() is None

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        attention = self._fused(query, key, value, self._return_attention_scores, options)
        if attention is None:
            return super()._compute_attention(
                query, key, value, attention_mask=keras_mask(attention_mask), training=training, **options
            )
        return attention(query, key, value, attention_mask, self._inverse_sqrt_head_dim, training)


# Keras's class has another name than its layer. Files of weights have paths of class names.
GroupQueryAttention.__name__ = keras.layers.GroupQueryAttention.__name__
