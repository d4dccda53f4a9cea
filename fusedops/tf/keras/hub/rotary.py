"""Rotary embeddings as layers that rotate queries and keys."""

from __future__ import annotations

from typing import ClassVar

import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.layer import HubLayer


class FusedRotation(HubLayer):
    """Replaces the rotation. KerasHub computes the frequencies, with every kind of scaling."""

    needs: ClassVar[tuple[str, ...]] = ("_compute_cos_sin_embedding",)

    def _apply_rotary_pos_emb(self, tensor: tf.Tensor, cos_emb: tf.Tensor, sin_emb: tf.Tensor) -> tf.Tensor:
        if len(tensor.shape) not in (3, 4):
            return super()._apply_rotary_pos_emb(tensor, cos_emb, sin_emb)
        cos, sin = (_table(embedding, tensor) for embedding in (cos_emb, sin_emb))
        return fo.rope(tensor, cos, sin, seq_dim=1 - len(tensor.shape))


def _table(embedding: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """KerasHub's [1 or B, T, (1,) D], which repeats each value, as [T, D/2] or [B, T, D/2]."""
    if len(embedding.shape) == 4:
        embedding = tf.squeeze(embedding, 2)
    half = embedding[..., : embedding.shape[-1] // 2]
    if half.shape[0] == 1:
        return tf.squeeze(half, 0)
    return tf.broadcast_to(half, tf.concat([tf.shape(tensor)[:1], tf.shape(half)[1:]], 0))


__getattr__ = made.counterparts("rotary", FusedRotation)
