"""Root mean square normalization, which every family of models has under a name of its own."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf
from keras_hub.src.models.gpt_oss import gpt_oss_layer_norm
from keras_hub.src.models.llama import llama_layernorm
from keras_hub.src.models.mistral import mistral_layer_norm
from keras_hub.src.models.mixtral import mixtral_layer_norm
from keras_hub.src.models.phi3 import phi3_layernorm
from keras_hub.src.models.qwen import qwen_layernorm
from keras_hub.src.models.qwen3 import qwen3_layernorm
from keras_hub.src.models.qwen3_moe import qwen3_moe_layernorm
from keras_hub.src.models.qwen_moe import qwen_moe_layernorm

import fusedops.tf as fo
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.layer import parameter

register = keras.saving.register_keras_serializable("fusedops.hub")


class FusedRMSNorm(HubLayer):
    needs = ("scale", "epsilon")
    weight_offset: ClassVar[float] = 0.0

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return fo.rms_norm(x, parameter(self.scale, x), eps=self.epsilon, weight_offset=self.weight_offset)

    def add_norm(self, x: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scale = parameter(self.scale, x)
        return fo.add_rms_norm(x, residual, scale, eps=self.epsilon, weight_offset=self.weight_offset)


@register
class GptOssLayerNormalization(FusedRMSNorm, gpt_oss_layer_norm.GptOssLayerNormalization):
    pass


@register
class LlamaLayerNorm(FusedRMSNorm, llama_layernorm.LlamaLayerNorm):
    pass


@register
class MistralLayerNormalization(FusedRMSNorm, mistral_layer_norm.MistralLayerNormalization):
    pass


@register
class MixtralLayerNormalization(FusedRMSNorm, mixtral_layer_norm.MixtralLayerNormalization):
    pass


@register
class Phi3LayerNorm(FusedRMSNorm, phi3_layernorm.Phi3LayerNorm):
    pass


@register
class QwenLayerNorm(FusedRMSNorm, qwen_layernorm.QwenLayerNorm):
    pass


@register
class QwenMoeLayerNorm(FusedRMSNorm, qwen_moe_layernorm.QwenMoeLayerNorm):
    pass


@register
class Qwen3LayerNorm(FusedRMSNorm, qwen3_layernorm.Qwen3LayerNorm):
    pass


@register
class Qwen3MoeLayerNorm(FusedRMSNorm, qwen3_moe_layernorm.Qwen3MoeLayerNorm):
    pass
