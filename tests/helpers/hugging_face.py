"""The models of Hugging Face's transformers that are tested: small ones of every family, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 128
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_HEADS = {"num_key_value_heads": 2, "head_dim": 16}


@dataclass(frozen=True)
class Family:
    """A family by the names of its classes, and how many modules of which class are replaced in a model of 2 layers."""

    config: str
    model: str
    replaced: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dtype: str = "float32", device: str = "cpu", seed: int = 0, **options: Any) -> Any:
        """A model whose weights are all random: those of norms, too, which begin as ones or zeros."""
        import torch
        import transformers

        config = getattr(transformers, self.config)(**{**_COMMON, **self.options, **options})
        torch.manual_seed(seed)
        model = getattr(transformers, self.model)(config)
        if getattr(model, "loss_type", "") is None:  # of some, which warn of it, and torch.compile knows no warning
            model.loss_type = "ForCausalLM"
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn_like(weight)
        return model.to(device, getattr(torch, dtype)).eval()


def _llama_like(prefix: str, norms: int = 5, mlp: str = "MLP") -> dict[str, int]:
    counts = {"Attention": 2, "DecoderLayer": 2, mlp: 2, "RMSNorm": norms, "ForCausalLM": 1}
    return {prefix + name: count for name, count in counts.items()}


FAMILIES = {
    # As a decoder, since the suite has its models write.
    "bert": Family(
        "BertConfig",
        "BertLMHeadModel",
        {
            "BertIntermediate": 2,
            "BertLMHeadModel": 1,
            "BertOutput": 2,
            "BertPredictionHeadTransform": 1,
            "BertSelfOutput": 2,
            "LayerNorm": 6,
        },
        {"is_decoder": True},
    ),
    "gemma": Family("GemmaConfig", "GemmaForCausalLM", _llama_like("Gemma"), _HEADS),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", _llama_like("Gemma2", 9), {**_HEADS, "sliding_window": 8}),
    "gemma3": Family(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        _llama_like("Gemma3", 13),
        {**_HEADS, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"GPT2Block": 2, "GPT2LMHeadModel": 1, "GPT2MLP": 2, "LayerNorm": 5},
        {"n_inner": 96},
    ),
    "llama": Family("LlamaConfig", "LlamaForCausalLM", _llama_like("Llama"), _HEADS),
    "mistral": Family("MistralConfig", "MistralForCausalLM", _llama_like("Mistral"), {**_HEADS, "sliding_window": 8}),
    # Each token goes to both experts: which one of more it goes to would hang on a rounding.
    "mixtral": Family(
        "MixtralConfig",
        "MixtralForCausalLM",
        _llama_like("Mixtral", mlp="Experts"),
        {**_HEADS, "num_local_experts": 2, "num_experts_per_tok": 2},
    ),
    "phi": Family(
        "PhiConfig",
        "PhiForCausalLM",
        {"LayerNorm": 3, "PhiAttention": 2, "PhiForCausalLM": 1, "PhiMLP": 2},
        {"partial_rotary_factor": 0.5},
    ),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", _llama_like("Phi3"), {**_HEADS, "pad_token_id": 0}),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", _llama_like("Qwen2"), _HEADS),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", _llama_like("Qwen3", 9), _HEADS),
}
