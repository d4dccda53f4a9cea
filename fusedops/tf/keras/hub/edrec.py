"""EdRec."""

from __future__ import annotations

import keras
from keras_hub.src.models.edrec import edrec_layers

from fusedops.tf.keras.hub.norms import FusedRMSNorm


@keras.saving.register_keras_serializable("fusedops.hub")
class EdRecRMSNormalization(FusedRMSNorm, edrec_layers.EdRecRMSNormalization):
    weight_offset = 1.0
