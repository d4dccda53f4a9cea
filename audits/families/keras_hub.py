"""The families of KerasHub: a small backbone of each, built from the argument names of its class."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_hub

import fusedops.tf as fo
from audits.families.code import code_of
from audits.families.counting import (
    ACTIVATIONS,
    ATTENTIONS,
    EXPERTS,
    GATED,
    NO_COUNTERPART,
    NORMS,
    PAIRS,
    ROTARY,
    Entry,
    counted,
)
from fusedops.keras_layers import internals
from fusedops.tf.keras.conversion import reported

IMPORTED = [__name__, "fusedops.tf.keras.hub.rotary", "fusedops.tf.keras.hub.transformer"]

_LENGTHS = (8, 4096)  # sizes tried for dimensions that the input leaves open
# Values of arguments by name, or by the end of the name after an underscore; the longest match counts.
_ARGUMENTS: dict[str, Any] = {
    "vocabulary_size": 128,
    "vocab_size": 128,
    "num_layers": 2,
    "layers_enc": 2,
    "layers_dec": 2,
    "num_hidden_layers": 2,
    "num_spatial_layers": 2,
    "num_temporal_layers": 2,
    "num_auxiliary_layers": 2,
    "num_heads": 4,
    "num_attention_heads": 4,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "head_size": 16,
    "hidden_dim": 64,
    "hidden_size": 64,
    "embedding_dim": 64,
    "embed_dim": 64,
    "filter_dim": 64,
    "intermediate_dim": 96,
    "intermediate_size": 96,
    "mlp_dim": 96,
    "num_experts": 2,
    "top_k": 2,
    "max_sequence_length": 64,
    "max_position_embeddings": 64,
    "sliding_window_size": 8,
    "sliding_window": 8,
    "image_size": 32,
    "image_shape": (32, 32, 3),
    "position_embedding_shape": (32, 32, 3),
    "patch_size": 8,
    "num_frames": 4,
    "global_attention_layer_indices": (1,),
    "window_size": 4,
    "layer_types": ("sliding_attention", "full_attention"),
    "layer_norm_epsilon": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": (True, True),
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "Gemma3Backbone": {"vision_encoder": None},
    "SwinTransformerBackbone": {"depths": (2, 2), "num_heads": (2, 4), "image_shape": (64, 64, 3), "patch_size": 4},
    "Qwen3_5Backbone": {"layer_types": ("linear_attention", "full_attention")},
    "Qwen3_5MoeBackbone": {"layer_types": ("linear_attention", "full_attention")},
    "RoformerV2Backbone": {"head_size": 16},
    "Gemma3nBackbone": {
        "hidden_activation": "gelu_approximate",
        "pad_token_id": 0,
        "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 16,
        "altup_num_inputs": 2,
        "laurel_rank": 8,
    },
    "MiTBackbone": {
        "layerwise_depths": (1, 1),
        "num_layers": 2,
        "layerwise_num_heads": (1, 2),
        "layerwise_sr_ratios": (2, 1),
        "max_drop_path_rate": 0.0,
        "layerwise_patch_sizes": (7, 3),
        "layerwise_strides": (4, 2),
        "hidden_dims": (32, 64),
    },
    "FluxBackbone": {
        "input_channels": 16,
        "mlp_ratio": 2.0,
        "depth": 1,
        "depth_single_blocks": 1,
        "axes_dim": (4, 6, 6),
        "theta": 10000,
        "use_bias": True,
    },
}


@functools.cache
def families() -> dict[str, type]:
    """The backbone classes by name."""
    names = (name for name in dir(keras_hub.models) if name.endswith("Backbone"))
    kinds = {name: getattr(keras_hub.models, name) for name in sorted(names)}
    return {name: kind for name, kind in kinds.items() if "args" not in inspect.signature(kind.__init__).parameters}


def build(name: str) -> Any:
    """A small backbone."""
    kind = families()[name]
    parameters = inspect.signature(kind.__init__).parameters
    found = _OF_FAMILY.get(name, {})
    arguments = {key: value for key in parameters if (value := _argument(key)) is not None}
    return kind(**(arguments | {key: value for key, value in found.items() if key in parameters}))


def _argument(name: str) -> Any:
    match = max((x for x in _ARGUMENTS if name == x or name.endswith(f"_{x}")), key=len, default=None)
    return _ARGUMENTS[match] if match else None


def kinds_of(layer: Any) -> Counter[str]:
    """The number of units of each kind in a layer. KerasHub's gated MLP is not a layer, but part of a block's code."""
    kind = next((base for base in type(layer).__mro__ if not base.__module__.startswith("fusedops")), type(layer))
    name = kind.__name__
    children = {key: value for key, value in vars(layer).items() if isinstance(value, keras.layers.Layer)}
    shapes = {key: tuple(child.kernel.shape) for key, child in children.items() if hasattr(child, "kernel")}
    gates = [key for key, shape in shapes.items() if "gat" in key and list(shapes.values()).count(shape) > 1]
    found = Counter(
        {
            NORMS: is_norm(layer),
            ACTIVATIONS: kind.__module__.startswith("keras.src.layers.activations") and "Softmax" not in name,
            ROTARY: "Rotary" in name,
            ATTENTIONS: "Attention" in name and len(children) >= 2,
            EXPERTS: "Expert" in name,
            GATED: bool(gates) and "Attention" not in name,
            PAIRS: sum(is_norm(children.get(key)) for key in code_of(kind, "call").added_then_called),
        }
    )
    return +found


def is_norm(layer: Any) -> bool:
    """True for a norm over whole rows, as fusedops's are."""
    name = type(layer).__name__
    return (
        isinstance(layer, keras.layers.Layer)
        and "Norm" in name
        and not any(other in name for other in ("Batch", "Group", "Spectral", "Unit"))
        and not any(isinstance(child, keras.layers.Layer) and child.weights for child in vars(layer).values())
    )


def row_of(name: str) -> Entry:
    """The counts of a family's small backbone."""
    model = build(name)
    layers = internals.layers(model)
    kinds = {layer: kinds_of(layer) for layer in layers}
    classes = {layer: type(layer).__name__ for layer in layers}
    calls = {layer: type(layer).call for layer in layers}
    outcomes = reported(model).outcomes
    called = attending(model, [layer for layer in layers if kinds[layer][ATTENTIONS]])

    def does(layer: Any, kind: str) -> bool:
        return kind not in (GATED, PAIRS) or type(layer).call is not calls[layer]  # these kinds are lines of `call`

    return {"model": name, **counted(kinds, outcomes, classes, called, does)}


def attending(model: Any, attentions: Iterable[Any]) -> dict[Any, str | None]:
    """Maps each attention that a backbone calls to the reason why its `call` does not use fusedops's, or None."""
    found: dict[int, str | None] = {}
    inside: list[int] = []
    original, operator = keras.layers.Layer.__call__, fo.attention
    watched = {id(each): each for each in attentions}

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(layer) not in watched:
            return original(layer, *args, **kwargs)
        found.setdefault(id(layer), NO_COUNTERPART)
        inside.append(id(layer))
        try:
            return original(layer, *args, **kwargs)
        finally:
            inside.pop()

    def operator_call(*args: Any, **kwargs: Any) -> Any:
        found.update(dict.fromkeys(inside))
        return operator(*args, **kwargs)

    keras.layers.Layer.__call__, fo.attention = call, operator_call
    try:
        for length in _LENGTHS:
            with contextlib.suppress(ValueError):  # the length is too short, such as for sound
                model(keras.tree.map_structure(functools.partial(_ones, length), model.input))
                break
    finally:
        keras.layers.Layer.__call__, fo.attention = original, operator
    return {watched[key]: why for key, why in found.items()}


def _ones(length: int, symbol: Any) -> Any:
    return keras.ops.ones([2, *(length if size is None else size for size in symbol.shape[1:])], symbol.dtype)


count = row_of  # the separate process needs no setup
