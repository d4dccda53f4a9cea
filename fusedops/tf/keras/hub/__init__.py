"""The counterparts of KerasHub's layers with code of their own, for `convert`.

A counterpart is found by the name of the layer's class, and its module is imported only when a model has such a layer:
without KerasHub, nothing here is imported. Counterparts rely on attributes and methods of the layers of KerasHub 0.32.
A layer of another version that lacks one is skipped.

KerasHub's models save themselves by their own config, and load as they were before `convert`. A counterpart that is a
layer of your own model, such as a TransformerEncoder, loads as one; the layers that it makes itself are KerasHub's
until the next `convert`. Keras knows its name before its module is imported: loading a file with the name imports it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeVar

import keras

from fusedops.conversion import full_name

_Kind = TypeVar("_Kind", bound=type)

MODULES = {
    "keras_hub.src.layers.modeling.cached_multi_head_attention.CachedMultiHeadAttention": "transformer",
    "keras_hub.src.layers.modeling.rotary_embedding.RotaryEmbedding": "rotary",
    "keras_hub.src.layers.modeling.transformer_decoder.TransformerDecoder": "transformer",
    "keras_hub.src.layers.modeling.transformer_encoder.TransformerEncoder": "transformer",
    "keras_hub.src.models.dinov3.dinov3_layers.DINOV3Attention": "dot_product",
    "keras_hub.src.models.edrec.edrec_layers.EdRecGatedFeedForward": "edrec",
    "keras_hub.src.models.edrec.edrec_layers.EdRecRMSNormalization": "edrec",
    "keras_hub.src.models.esm.esm_attention.ESMRotaryEmbedding": "esm",
    "keras_hub.src.models.esm.esm_attention.EsmSelfAttention": "dot_product",
    "keras_hub.src.models.gemma.gemma_attention.CachedGemmaAttention": "gemma",
    "keras_hub.src.models.gemma.gemma_decoder_block.GemmaDecoderBlock": "gemma",
    "keras_hub.src.models.gemma.rms_normalization.RMSNormalization": "gemma",
    "keras_hub.src.models.gemma3.gemma3_attention.CachedGemma3Attention": "gemma3",
    "keras_hub.src.models.gemma3.gemma3_decoder_block.Gemma3DecoderBlock": "gemma3",
    "keras_hub.src.models.gemma3.gemma3_layers.RMSNormalization": "gemma3",
    "keras_hub.src.models.gemma4.gemma4_attention.Gemma4TextAttention": "gemma4",
    "keras_hub.src.models.gemma4.gemma4_decoder_block.Gemma4TextDecoderBlock": "gemma4",
    "keras_hub.src.models.gemma4.gemma4_layers.Gemma4VNorm": "gemma4",
    "keras_hub.src.models.gemma4.gemma4_layers.RMSNormalization": "gemma4",
    "keras_hub.src.models.gemma4.gemma4_moe.Gemma4MoEBlock": "gemma4",
    "keras_hub.src.models.gpt_neo_x.gpt_neo_x_attention.GPTNeoXAttention": "gpt_neo_x",
    "keras_hub.src.models.gpt_oss.gpt_oss_attention.GptOssAttention": "gpt_oss",
    "keras_hub.src.models.gpt_oss.gpt_oss_decoder.GptOssExperts": "gpt_oss",
    "keras_hub.src.models.gpt_oss.gpt_oss_decoder.GptOssSparseMoeBlock": "gpt_oss",
    "keras_hub.src.models.gpt_oss.gpt_oss_decoder.GptOssTransformerDecoder": "decoder",
    "keras_hub.src.models.gpt_oss.gpt_oss_layer_norm.GptOssLayerNormalization": "norms",
    "keras_hub.src.models.llama.llama_attention.LlamaAttention": "attention",
    "keras_hub.src.models.llama.llama_decoder.LlamaTransformerDecoder": "gated_decoder",
    "keras_hub.src.models.llama.llama_layernorm.LlamaLayerNorm": "norms",
    "keras_hub.src.models.llama.llama_rotary_embedding.LlamaRotaryEmbedding": "rotary",
    "keras_hub.src.models.mistral.mistral_attention.CachedMistralAttention": "attention",
    "keras_hub.src.models.mistral.mistral_layer_norm.MistralLayerNormalization": "norms",
    "keras_hub.src.models.mistral.mistral_transformer_decoder.MistralTransformerDecoder": "gated_decoder",
    "keras_hub.src.models.mixtral.mixtral_attention.CachedMixtralAttention": "attention",
    "keras_hub.src.models.mixtral.mixtral_decoder.MixtralMoeExperts": "experts",
    "keras_hub.src.models.mixtral.mixtral_decoder.MixtralSparseMoeBlock": "mixture",
    "keras_hub.src.models.mixtral.mixtral_decoder.MixtralTransformerDecoder": "decoder",
    "keras_hub.src.models.mixtral.mixtral_layer_norm.MixtralLayerNormalization": "norms",
    "keras_hub.src.models.moonshine.moonshine_multi_head_attention.MoonshineMultiHeadAttention": "cached",
    "keras_hub.src.models.pali_gemma.pali_gemma_decoder_block.PaliGemmaDecoderBlock": "pali_gemma",
    "keras_hub.src.models.phi3.phi3_attention.Phi3Attention": "attention",
    "keras_hub.src.models.phi3.phi3_decoder.Phi3Decoder": "phi3",
    "keras_hub.src.models.phi3.phi3_layernorm.Phi3LayerNorm": "norms",
    "keras_hub.src.models.qwen.qwen_attention.QwenAttention": "attention",
    "keras_hub.src.models.qwen.qwen_decoder.QwenTransformerDecoder": "gated_decoder",
    "keras_hub.src.models.qwen.qwen_layernorm.QwenLayerNorm": "norms",
    "keras_hub.src.models.qwen3.qwen3_attention.Qwen3Attention": "attention",
    "keras_hub.src.models.qwen3.qwen3_decoder.Qwen3TransformerDecoder": "gated_decoder",
    "keras_hub.src.models.qwen3.qwen3_layernorm.Qwen3LayerNorm": "norms",
    "keras_hub.src.models.qwen3_5.qwen3_5_attention.Qwen3_5Attention": "attention",
    "keras_hub.src.models.qwen3_5.qwen3_5_decoder.Qwen3_5TransformerDecoder": "qwen3_5",
    "keras_hub.src.models.qwen3_5.qwen3_5_layers.Qwen3_5LayerNorm": "qwen3_5",
    "keras_hub.src.models.qwen3_5.qwen3_5_layers.Qwen3_5RMSNormGated": "norms",
    "keras_hub.src.models.qwen3_5_moe.qwen3_5_moe_decoder.Qwen3_5MoeExperts": "experts",
    "keras_hub.src.models.qwen3_5_moe.qwen3_5_moe_decoder.Qwen3_5MoeMLP": "mlp",
    "keras_hub.src.models.qwen3_5_moe.qwen3_5_moe_decoder.Qwen3_5MoeSparseMoeBlock": "qwen3_5",
    "keras_hub.src.models.qwen3_5_moe.qwen3_5_moe_decoder.Qwen3_5MoeTransformerDecoder": "decoder",
    "keras_hub.src.models.qwen3_moe.qwen3_moe_attention.Qwen3MoeAttention": "attention",
    "keras_hub.src.models.qwen3_moe.qwen3_moe_decoder.Qwen3MoeExperts": "experts",
    "keras_hub.src.models.qwen3_moe.qwen3_moe_decoder.Qwen3MoeTransformerDecoder": "decoder",
    "keras_hub.src.models.qwen3_moe.qwen3_moe_decoder.Qwen3SparseMoeBlock": "mixture",
    "keras_hub.src.models.qwen3_moe.qwen3_moe_layernorm.Qwen3MoeLayerNorm": "norms",
    "keras_hub.src.models.qwen_moe.qwen_moe_attention.QwenMoeAttention": "attention",
    "keras_hub.src.models.qwen_moe.qwen_moe_decoder.QwenMoeExperts": "experts",
    "keras_hub.src.models.qwen_moe.qwen_moe_decoder.QwenMoeMLP": "mlp",
    "keras_hub.src.models.qwen_moe.qwen_moe_decoder.QwenMoeTransformerDecoder": "decoder",
    "keras_hub.src.models.qwen_moe.qwen_moe_decoder.QwenSparseMoeBlock": "mixture",
    "keras_hub.src.models.qwen_moe.qwen_moe_layernorm.QwenMoeLayerNorm": "norms",
    "keras_hub.src.models.roformer_v2.roformer_v2_attention.RoformerAttention": "dot_product",
    "keras_hub.src.models.roformer_v2.roformer_v2_attention.RoformerNorm": "norms",
    "keras_hub.src.models.smollm3.smollm3_layers.SmolLM3Attention": "smollm3",
    "keras_hub.src.models.smollm3.smollm3_layers.SmolLM3DecoderLayer": "decoder",
    "keras_hub.src.models.smollm3.smollm3_layers.SmolLM3MLP": "smollm3",
    "keras_hub.src.models.smollm3.smollm3_layers.SmolLM3RotaryEmbedding": "smollm3",
    "keras_hub.src.models.t5.t5_layer_norm.T5LayerNorm": "t5",
    "keras_hub.src.models.t5.t5_multi_head_attention.T5MultiHeadAttention": "t5",
    "keras_hub.src.models.t5.t5_transformer_layer.T5TransformerLayer": "t5",
    "keras_hub.src.models.t5gemma.t5gemma_attention.T5GemmaAttention": "additive_mask",
    "keras_hub.src.models.t5gemma.t5gemma_layers.T5GemmaMLP": "t5gemma",
    "keras_hub.src.models.t5gemma2.t5gemma2_attention.T5Gemma2Attention": "additive_mask",
    "keras_hub.src.models.t5gemma2.t5gemma2_attention.T5Gemma2MergedAttention": "additive_mask",
    "keras_hub.src.models.t5gemma2.t5gemma2_layers.T5Gemma2MLP": "t5gemma",
    "keras_hub.src.models.whisper.whisper_cached_multi_head_attention.WhisperCachedMultiHeadAttention": "cached",
}
"""The module here with the counterpart of each class, under the class's own name."""


def counterpart(kind: type) -> type:
    """The counterpart of a known class. It raises the errors of `conversion.Rules.counterpart`."""
    return _find(MODULES[full_name(kind)], kind.__name__)


def _find(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def _package(module: str, name: str) -> str:
    """The package in the saved name of a counterpart. Several families have norms of one name."""
    return f"fusedops.hub.{module}" if module == "gemma" or name == "RMSNormalization" else "fusedops.hub"


def saved(kind: _Kind) -> _Kind:
    """Registers a counterpart under its name, for saving and loading."""
    package = _package(kind.__module__.rpartition(".")[2], kind.__name__)
    keras.saving.register_keras_serializable(package)(kind)
    return kind


class _Unimported:
    """Stands for a counterpart until its module is imported. Keras calls only its `from_config`."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        return _find(self.module, self.name).from_config(config)


for _place, _module in MODULES.items():
    _name = _place.rpartition(".")[2]
    keras.saving.get_custom_objects()[f"{_package(_module, _name)}>{_name}"] = _Unimported(_module, _name)


def is_known(kind: type) -> bool:
    return full_name(kind) in MODULES


def learn_activations() -> None:
    """Adds KerasHub's activation functions to those of the kernels, if KerasHub is imported."""
    if "keras_hub" in sys.modules:
        importlib.import_module(f"{__name__}.activations")
