"""Attention with grouped heads, under another name in each family of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import tensorflow as tf

from fusedops.keras_layers.visibility import Visibility, attend, can_attend, keras_mask, unsupported_heads
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.layer import HubLayer


def without_repeats(name: str) -> property:
    """The number of repeats of keys and values in `call`, always 1: the kernel shares them among heads."""

    def set_value(self: Any, value: int) -> None:
        self.__dict__[name] = value

    return property(lambda self: 1, set_value)


def in_window(mask: Any, size: int | None, mask_in_window: Callable[[Any], Any]) -> Any:
    """The mask within a layer's own window, if it has one. `mask_in_window` applies it to a mask of Keras."""
    if not size:
        return mask
    if isinstance(mask, Visibility) and mask.causal:
        return replace(mask, window=size)
    return mask_in_window(keras_mask(mask))


class FusedAttention(HubLayer):
    """KerasHub's code projects, rotates and caches. A query that sees no key gets zeros, as in KerasHub."""

    needs: ClassVar[tuple[str, ...]] = ("_inv_norm_factor", "_compute_attention")

    num_key_value_groups = without_repeats("num_key_value_groups")
    _num_key_value_groups = without_repeats("_num_key_value_groups")  # Mistral's name for it

    def why_not(self, inputs: Any = None) -> str | None:
        return super().why_not(inputs) or unsupported_heads(head_dim=self._features())

    def _features(self) -> int:
        """The number of features of a head."""
        dense = getattr(self, "_key_dense", None) or self.key_dense
        return int(dense.kernel.shape[-1])

    def _compute_attention(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        attention_mask: Any = None,
        cache_update_index: Any = None,
    ) -> tf.Tensor:
        if not can_attend(query, key, value):
            groups = query.shape[2] // key.shape[2]
            key, value = (tf.repeat(x, groups, 2) for x in (key, value))
            of_cache = () if cache_update_index is None else (cache_update_index,)
            return super()._compute_attention(query, key, value, keras_mask(attention_mask), *of_cache)
        index = 0 if cache_update_index is None else cache_update_index
        mask = in_window(attention_mask, self._window(), lambda mask: self._mask_in_window(query, key, mask, index))
        return attend(query, key, value, mask, self._inv_norm_factor, sinks=self._sinks(query))

    def _window(self) -> int | None:
        """The layer's own window, if it has one."""
        has_window = getattr(self, "use_sliding_window_attention", True)
        return getattr(self, "sliding_window_size", None) if has_window else None

    def _mask_in_window(self, query: tf.Tensor, key: tf.Tensor, mask: Any, start_index: Any) -> tf.Tensor:
        return self._mask_sliding_window(mask, cache_update_index=start_index)

    def _sinks(self, query: tf.Tensor) -> tf.Tensor | None:
        return None


__getattr__ = made.counterparts("attention", FusedAttention)
