"""The attention of transformers' models. Importing this module registers it with transformers, under `NAMES`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fusedops.torch as fo
from fusedops.functions.common import MAX_FEATURES
from fusedops.torch.conversion.hf import masks
from fusedops.torch.conversion.hf.internals import (
    ALL_ATTENTION_FUNCTIONS,
    ALL_MASK_ATTENTION_FUNCTIONS,
    sdpa_attention_forward,
)
from fusedops.torch.nn.layer import REFUSED, is_plain, unfused_input


class Name(NamedTuple):
    """An attention of ours: the name of transformers', which handles the calls that the kernel does not support."""

    original: str
    has_full_masks: bool  # transformers' own masks instead of compact ones


NAMES = {
    "fusedops": Name("sdpa", False),
    "fusedops_eager": Name("eager", False),
    "fusedops_full_masks": Name("sdpa", True),
    "fusedops_eager_full_masks": Name("eager", True),
}
# Arguments of some attentions that the kernel does not support: paged cache, sinks of another kind.
_UNSUPPORTED = ("sinks", "cache")
_Result = tuple[Tensor, Tensor | None]
_Attention = Callable[..., _Result]


def eager(module: Any) -> _Attention | None:
    """The `eager_attention_forward` of the Python module of a module's class, or of a base class."""
    for kind in type(module).__mro__:
        function = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    return None


def why_not(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: masks.Visible | None,
    scaling: Any = None,
    output_attentions: bool = False,
    **options: Any,
) -> str | None:
    """The reason why transformers' own attention computes a call, or None.

    Args:
        query, key, value: [B, heads, positions, features].
        visible: the result of `masks.visible`.
        scaling, output_attentions, options: as passed by the attention's module.
    """
    if visible is None:
        return "its mask is not one of booleans, nor added to the scores"
    if output_attentions:
        return "the kernel does not keep the attention's weights"
    for name in _UNSUPPORTED if options else ():
        if options.get(name) is not None:
            return f"the kernel has no {name}"
    if isinstance(scaling, Tensor):
        return "its scale is a tensor"
    features, of_values = query.shape[-1], value.shape[-1]
    if features > MAX_FEATURES or of_values > MAX_FEATURES:
        return f"its heads have more than {MAX_FEATURES} features"
    if query.dim() != 4 or not query.shape[0] == key.shape[0] == value.shape[0]:
        return "its queries and keys are of different batches"
    if not query.dtype is key.dtype is value.dtype and not torch.is_autocast_enabled(query.device.type):
        return "its queries, keys and values are of different dtypes"
    return unfused_input(query)


def _is_supported_call(query: Tensor, scaling: Any, options: Mapping[str, Any]) -> bool:
    """True for a call with plain tensors and supported options. The operator refuses the other reasons of `why_not`."""
    if isinstance(scaling, Tensor) or query.dim() != 4 or not is_plain(query):
        return False
    if options.get("output_attentions"):
        return False
    return options.keys().isdisjoint(_UNSUPPORTED) or all(options.get(name) is None for name in _UNSUPPORTED)


def _are_supported_tensors(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True if the operator accepts these tensors. With dropout, it would refuse them only after a seed is drawn."""
    return (
        key.dtype is value.dtype is query.dtype
        and max(query.shape[-1], value.shape[-1]) <= MAX_FEATURES
        and key.shape[-1] == query.shape[-1]
        and query.shape[0] == key.shape[0] == value.shape[0]
    )


def _packed(mask: Tensor | None, options: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The offsets of packed sequences of queries and keys: those of flash attention, or our mask; else None."""
    if options:
        given = options.get("cu_seq_lens_q"), options.get("cu_seq_lens_k")
        if given[0] is not None and given[1] is not None:
            return given[0].to(torch.int32), given[1].to(torch.int32)
    return (mask, mask) if mask is not None and mask.dim() == 1 and mask.dtype is torch.int32 else None


def _attend(
    original: Callable[..., _Result],
    is_by_mask: bool,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> _Result:
    """The attention as transformers calls it, on [B, heads, positions, features].

    Args:
        is_by_mask: True if the mask alone says that the attention is causal, as for transformers' eager attention.
        s_aux: the sinks.
        options: what the kernel does not compute: `why_not` finds what transformers' own attention does,
            `unknown_option` what no code here knows.
    """
    queries, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and not is_by_mask
    leaves_cap_out = softcap is not None and original is _sdpa  # as some versions of transformers' own do
    window = sliding_window if causal else None
    every: dict[str, Any] = {"scale": scaling, "sinks": s_aux}  # of all calls of the kernel
    packed = _packed(attention_mask, options)
    if packed and attention_mask is not None and attention_mask.dim() != 1:
        # Beside a mask of padding, and in a cache, transformers' flash attention ignores the offsets, too.
        is_full = attention_mask.dim() == 4 and not masks.is_compact(attention_mask)
        if is_full and queries == keys > 1:
            attention_mask = masks.within_packed(attention_mask, *packed, query.shape[0], queries)
    elif packed:
        unfused = why_not(query, key, value, masks.Visible(keys), scaling, **options)
        if not dropout and not leaves_cap_out and position_bias is None and unfused is None:
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
            y = fo.attention_varlen(q, k, v, *packed, causal=causal, window=window, softcap=softcap or 0.0, **every)
            return y.view(query.shape[0], queries, *y.shape[1:]), None
        attention_mask = masks.of_packed(*packed, query.shape[0], queries, keys, causal, window)
    is_plain_call = attention_mask is None and position_bias is None and softcap is None
    is_whole = is_plain_call and (queries == keys or 1 == queries <= keys or not causal)
    if (
        is_whole
        and _is_supported_call(query, scaling, options)
        and (not dropout or _are_supported_tensors(query, key, value))
    ):
        rows = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        try:
            return fo.attention(*rows, causal=causal, window=window, dropout=dropout, **every), None
        except REFUSED:
            pass  # the code below finds the reason
    is_causal = False if is_by_mask else is_causal
    named: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, "softcap": softcap}
    named |= {} if position_bias is None else {"position_bias": position_bias}
    named |= {} if s_aux is None else {"s_aux": s_aux}
    # Moonshine's attention passes is_causal=False beside any mask.
    takes_ours = attention_mask is not None and not is_by_mask and getattr(module, "is_causal", False)
    visible = masks.visible(attention_mask, queries, keys, causal or takes_ours, sliding_window, position_bias)
    if leaves_cap_out or why_not(query, key, value, visible, scaling, **options) or visible is None:
        is_in_options = attention_mask is None and causal and sliding_window is not None
        if visible is not None and (is_in_options or masks.is_compact(attention_mask)):
            attention_mask = visible.full(queries, keys, query.device)
        return original(module, query, key, value, attention_mask, sliding_window=sliding_window, **named, **options)
    if visible.keys != keys:
        key, value = key[:, :, : visible.keys], value[:, :, : visible.keys]
    y = fo.attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        causal=visible.causal,
        mask=visible.mask,
        window=visible.window,
        lengths=visible.lengths,
        query_offset=visible.first_query,
        softcap=softcap or 0.0,
        dropout=dropout,
        bias=None if visible.bias is None else masks.as_bias(visible.bias, query),
        **every,
    )
    return y, None


def _eager(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> _Result:
    """The module's own eager attention. Its mask is added to the scores, and includes causality."""
    attention = eager(module)
    assert attention is not None  # checked by `implementation`
    causal = options.pop("is_causal")
    if mask is None and (getattr(module, "is_causal", True) if causal is None else causal) and query.shape[2] > 1:
        visible = masks.visible(None, query.shape[2], key.shape[2], True, None)
        mask = None if visible is None else visible.full(query.shape[2], key.shape[2], query.device)
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    return attention(module, query, key, value, mask, **{k: v for k, v in options.items() if v is not None})


def _sdpa(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> _Result:
    return sdpa_attention_forward(module, query, key, value, mask, **options)


_ORIGINALS: dict[str, Callable[..., _Result]] = {"sdpa": _sdpa, "eager": _eager}
_KNOWN = frozenset({*inspect.signature(_attend).parameters, *_UNSUPPORTED})


def unknown_option(function: Callable[..., Any]) -> str | None:
    """The name of an argument of an attention of transformers that is not known here, and would be dropped."""
    given = inspect.signature(function).parameters.values()
    named = (x.name for x in given if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD))
    return next((name for name in named if name not in _KNOWN), None)


for _name, _by in NAMES.items():
    _is_by_mask = _by == ("eager", True)
    ALL_ATTENTION_FUNCTIONS.register(_name, functools.partial(_attend, _ORIGINALS[_by.original], _is_by_mask))
    _mask = ALL_MASK_ATTENTION_FUNCTIONS[_by.original] if _by.has_full_masks else masks.mask
    ALL_MASK_ATTENTION_FUNCTIONS.register(_name, _mask)
