"""KerasHub's own activation functions that the kernels have. Importing this module adds them."""

from __future__ import annotations

from keras_hub.src.utils.keras_utils import gelu_approximate

from fusedops.keras_layers.activations import FUSED

FUSED[gelu_approximate] = "gelu_tanh"
