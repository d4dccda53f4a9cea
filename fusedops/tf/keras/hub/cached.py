"""Attention over a cache, by code of KerasHub's that calls Keras's attention, which is ours."""

from __future__ import annotations

from typing import Any

from fusedops.keras_layers.attention import MultiHeadAttention
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.layer import HubLayer


class FusedCachedAttention(HubLayer, MultiHeadAttention):
    def why_not(self, inputs: Any = None) -> str | None:
        return super().why_not(inputs) or MultiHeadAttention.why_not(self, inputs)


__getattr__ = made.counterparts("cached", FusedCachedAttention)
