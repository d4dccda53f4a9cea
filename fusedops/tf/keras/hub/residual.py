"""Residual connections: the sum and the following norm in one pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusedops.keras_layers.dropout import add, pending_dropout
from fusedops.keras_layers.normalization import LayerNormalization
from fusedops.tf.keras.hub.norms import FusedRMSNorm


def add_norm(
    norm: Any, x: tf.Tensor, residual: tf.Tensor, dropout: Any = None, training: bool | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """(norm(s), s) with s = dropout(x) + residual: in one pass, as far as the layers are ours."""
    if isinstance(norm, FusedRMSNorm) or (type(norm) is LayerNormalization and not norm.why_not(x)):
        rate, seed = 0.0, None
        if dropout is not None:
            x, rate, seed = pending_dropout(dropout, x, residual, training)
        return norm.fused_add(x, residual, rate, seed)
    s = x + residual if dropout is None else add(x, residual, dropout, training)
    return norm(s), s
