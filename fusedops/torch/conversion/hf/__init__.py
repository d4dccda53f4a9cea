"""The counterparts of the modules of Hugging Face's transformers, for `convert`.

A module is known by the name of its class, and its mixin is imported only when a model has such a module: without
transformers, nothing here is imported. Mixins rely on attributes of the modules of
transformers 5; a module of another version that lacks one, or whose `forward` does more, is kept as it is.
"""

from __future__ import annotations

import functools
import importlib

from fusedops.conversion import full_name

_LLAMA = {
    "RMSNorm": "norms.RMSNorm",
    "MLP": "mlp.GatedMLP",
    "Attention": "rotary.RotaryAttention",
    "DecoderLayer": "residual.PreNormBlock",
    "ForCausalLM": "loss.LanguageModel",
}
_GEMMA = _LLAMA | {"RMSNorm": "norms.OffsetRMSNorm"}
_FOUR_NORMS = _GEMMA | {"DecoderLayer": "residual.FourNormBlock"}

_HEADS = ("ForQuestionAnswering", "ForSequenceClassification", "ForTokenClassification")
_BERT = {
    "Intermediate": "dense.BertIntermediate",
    "LMHeadModel": "loss.LanguageModel",
    "Output": "residual.PostNorm",
    "PredictionHeadTransform": "dense.BertPredictionHeadTransform",
    "SelfOutput": "residual.PostNorm",
    **dict.fromkeys(_HEADS, "loss.HeadWithLoss"),
    "ForMaskedLM": "loss.HeadWithLoss",
    "ForMultipleChoice": "loss.HeadWithLoss",
    "ForNextSentencePrediction": "loss.HeadWithLoss",
    "ForPreTraining": "loss.HeadWithLoss",
}
_GPT2 = {
    "Block": "residual.GPT2Block",
    "DoubleHeadsModel": "loss.HeadWithLoss",
    "LMHeadModel": "loss.LanguageModel",
    "MLP": "dense.GPT2MLP",
    **dict.fromkeys(_HEADS, "loss.HeadWithLoss"),
}
_PHI = {"Attention": "rotary.RotaryAttention", "ForCausalLM": "loss.LanguageModel", "MLP": "dense.PhiMLP"}
_PHI3 = _LLAMA | {"MLP": "mlp.PackedMLP", "DecoderLayer": "residual.DropoutBlock"}

_FAMILIES: dict[str, dict[str, str]] = {
    "bert.modeling_bert.Bert": _BERT,
    "gemma.modeling_gemma.Gemma": _GEMMA,
    "gemma2.modeling_gemma2.Gemma2": _FOUR_NORMS,
    "gemma3.modeling_gemma3.Gemma3": _FOUR_NORMS,
    "gpt2.modeling_gpt2.GPT2": _GPT2,
    "llama.modeling_llama.Llama": _LLAMA,
    "mistral.modeling_mistral.Mistral": _LLAMA,
    "mixtral.modeling_mixtral.Mixtral": _LLAMA | {"Experts": "mlp.GatedExperts"},
    "phi.modeling_phi.Phi": _PHI,
    "phi3.modeling_phi3.Phi3": _PHI3,
    "qwen2.modeling_qwen2.Qwen2": _LLAMA,
    "qwen3.modeling_qwen3.Qwen3": _LLAMA,
}
"""Where a family's classes are and what their names begin with; how they go on, and the mixin for each."""

_MIXINS = {
    f"transformers.models.{family}{part}": mixin for family, parts in _FAMILIES.items() for part, mixin in parts.items()
}


def counterpart(kind: type) -> type:
    """What stands in for this class, which is known; it may raise what `conversion.Rules.counterpart` does."""
    return _made(kind, _MIXINS[full_name(kind)])


def is_known(kind: type) -> bool:
    return full_name(kind) in _MIXINS and not hasattr(kind, "original")


@functools.cache
def _made(kind: type, mixin: str) -> type:
    file, _, name = mixin.partition(".")
    made: type = getattr(importlib.import_module(f"{__name__}.{file}"), name).over(kind)
    return made
