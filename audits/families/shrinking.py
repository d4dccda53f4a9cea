"""Small configs of transformers, derived from the names of their fields. transformers' tests write them by hand."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from typing import Any

VOCABULARY = 128
ORDINARY = 96  # tokens from here on may be special, such as an image placeholder or the end of a text
LAYERS, EXPERTS, HEADS, HEAD_DIM, HIDDEN, FEEDFORWARD = 2, 2, 4, 16, 64, 96

_UNCHANGED = -1
_KV_HEADS = re.compile(r".*(key_value|kv)_heads?|n_head_kv|multi_query_group_num")

# Values of fields without a default, which configs of released models set.
_MISSING = {
    "head_dim": HEAD_DIM,
    "mask_token_id": 4,
    "n_routed_experts": EXPERTS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": EXPERTS,
    "pad_token_id": 0,
    "prediction_length": 8,
    "vocab_size": VOCABULARY,
}

# Values of integer fields: the first pattern that matches the whole name counts.
_COUNTS = (
    (r"type_vocab_size", 2),
    (r".*vocab_size(?!_base).*|num_hash_buckets", VOCABULARY),
    # Each token goes to all experts: otherwise the choice could depend on a rounding.
    (r".*(num_experts_per_tok|experts_per_token|moe_top_?k|num_selected_experts|router_top_?k|top_k_experts)", EXPERTS),
    (r".*shared_experts", 1),
    (r".*(num|n)_(local_|routed_|global_)?experts", EXPERTS),
    (r"n_group|topk_group|num_expert_group|moe_n_group", 1),
)
_LAYERS = (
    (r"first_k_dense_replace|moe_layer_start_index|n(um)?_dense_layers|expert_layer_offset|attn_layer_offset", 1),
    (r".*_layer_period|full_attention_interval", 2),
    (r"moe_layer_end_index|moe_layer_(freq|interval)|.*sparse_step|interleave_moe_layer_step|moe_every_n_layers", 1),
    (r"num_kv_shared_layers|num_nextn_predict_layers", 0),
    (r".*feat_extract_layers|num_adapter_layers|num_timestamp_prediction_layers|.*stages|.*_layer_index", _UNCHANGED),
    (r"(.*_)?(num_)?(hidden_)?(layers|n_layer|n_layers|depth|num_blocks|[lrx]_layers)", LAYERS),
)
_SIZES = (
    (r".*rope_head_dim|rotary_dim", HEAD_DIM // 2),
    (r".*qk_head_dim", HEAD_DIM + HEAD_DIM // 2),
    (r".*(head_dim|head_size|dim_head|d_kv|d_head|kv_channels|linear_(key|value)_head_dim)", HEAD_DIM),
    (r".*(mamba|ssm).*heads", 2 * HIDDEN // HEAD_DIM),
    (r".*(mamba|ssm).*(head_?dim|d_head)", HEAD_DIM),
    (r".*(mamba|ssm)_(n_)?groups|n_groups", 1),
    (r"mamba_d_ssm", 2 * HIDDEN),
    (r".*(heads|n_head|num_head)", HEADS),
    (r".*lora_rank", 16),
    (r".*(max_|num_|n_).*(position|ctx|tokens_per|max_len|seq).*", 64),
    (r"(?!.*type).*(d_ff|dff|ffn_dim|n_inner|dim_ff|ffn_hidden_size|intermediate_(size|dim)|feed_?forward.*|mlp_dim)",
     FEEDFORWARD),
    (r"query_pre_attn_scalar", HEAD_DIM),
    (r".*(hidden_size|hidden_dim|d_model|model_dim|n_embd|d_embed|embed_dim|emb_dim|embedding_(size|dim))", HIDDEN),
    (r".*projection_(dim|size)|d_latents|lru_width|word_embed_proj_dim|hidden_size_global", HIDDEN),
    (r"sliding_window.*|attention_window|chunk_size|mamba_chunk_size|local_attention|attention_chunk_size", 8),
    (r"num_queries|num_query_tokens|.*num_latents|mm_tokens_per_image", 16),
)  # fmt: skip
_EXCEPTIONS = {"chunk_size_feed_forward"}  # fields that match a pattern but stay as they are
_IGNORED = {"id2label", "label2id", "architectures", "transformers_version"}
_MROPE = [HEAD_DIM // 2 - 2 * (HEAD_DIM // 6), HEAD_DIM // 6, HEAD_DIM // 6]  # sections of half a head
_MAX_KINDS = 4

_TOKEN = re.compile(r".*(token_id|token_index|token|_bos_id|_eos_id|_pad_id|im_\w+_id)s?")


class Shrink(Enum):
    """The sizes of a default config to reduce."""

    ALL = (*_COUNTS, *_LAYERS, *_SIZES)
    COUNTS = (*_COUNTS, *_LAYERS)  # not widths, for which some configs have their own constraints
    LAYERS = _LAYERS  # the other sizes are mostly those of a released model


def small_config(kind: type, shrink: Shrink = Shrink.ALL, **options: Any) -> Any:
    """A config with few layers, at least one of each kind of layer.

    Args:
        kind: a config class; every field has a default.
        shrink: the sizes to reduce.
        options: values of further fields.
    """
    return kind(**(_changes(kind(), shrink) | options))


def _changes(default: Any, shrink: Shrink) -> dict[str, Any]:
    rules = [(re.compile(name), value) for name, value in shrink.value]
    sizes = shrink is Shrink.ALL
    special = iter(range(ORDINARY + 4, VOCABULARY))
    changes: dict[str, Any] = {}
    for name in _fields(default):
        value = _value(default, name)
        if hasattr(value, "to_dict"):
            changes[name] = type(value)(**_changes(value, shrink))
        elif type(value) is int and _TOKEN.fullmatch(name) and shrink is not Shrink.LAYERS:
            changes[name] = value if value < ORDINARY else next(special)
        elif value is None and name in _MISSING:
            changes[name] = _MISSING[name]
        elif type(value) is int and value > 1 and name not in _EXCEPTIONS:
            if sizes and _KV_HEADS.fullmatch(name):
                new = HEADS if value == _value(default, "num_attention_heads") else HEADS // 2
            else:
                new = next((new for rule, new in rules if rule.fullmatch(name)), _UNCHANGED)
            changes |= {} if new is _UNCHANGED else {name: new}
        elif isinstance(value, dict) and "mrope_section" in value and sizes:
            changes[name] = value | {"mrope_section": _MROPE}
    return changes | _per_layer(default, changes)


def _per_layer(default: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Shortens the per-layer lists to a subset of layers that has every value of every list."""
    layers = getattr(default, "num_hidden_layers", None)
    lists = {name: _value(default, name) for name in _fields(default)}
    lists = {name: list(x) for name, x in lists.items() if isinstance(x, (list, tuple)) and len(x) == layers}
    if not lists or not layers:
        return {}
    chosen = {x.index(value) for x in lists.values() if len(set(map(str, x))) <= _MAX_KINDS for value in x}
    for layer in range(layers):
        if len(chosen) < LAYERS:
            chosen.add(layer)
    numbers = {name for name, x in lists.items() if x == [*range(layers)]}  # layer indices
    return {
        **{
            name: [*range(len(chosen))] if name in numbers else [x[i] for i in sorted(chosen)]
            for name, x in lists.items()
        },
        **{name: len(chosen) for name in ("num_hidden_layers",) if name in changes},
    }


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # some configs raise when a per-layer field is read
        return inspect.signature(type(config)).parameters[name].default


def _fields(config: Any) -> list[str]:
    names = inspect.signature(type(config)).parameters
    return [name for name in names if name not in _IGNORED]
