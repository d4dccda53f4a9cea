"""Residual connections: the sum and the norm that follows it are one pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.normalization import LayerNormalization


def add_norm(norm: Any, x: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(norm(s), s) with s = x + residual: in one pass, if the norm is one of ours."""
    if isinstance(norm, FusedRMSNorm) or (type(norm) is LayerNormalization and not norm.why_not(x)):
        return norm.fused_add(x, residual)
    s = x + residual
    return norm(s), s
