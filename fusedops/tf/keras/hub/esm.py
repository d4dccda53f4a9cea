"""ESM and ESM-2."""

from __future__ import annotations

import tensorflow as tf
from keras_hub.src.models.esm import esm_attention

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.rotary import FusedRotation


@saved
class ESMRotaryEmbedding(FusedRotation, esm_attention.ESMRotaryEmbedding):
    needs = (*FusedRotation.needs, "apply_rotary_pos_emb")

    def apply_rotary_pos_emb(self, x: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor) -> tf.Tensor:
        length = tf.shape(x)[1]
        return self._apply_rotary_pos_emb(x, cos[:, :length], sin[:, :length])
