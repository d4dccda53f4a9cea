"""Compact masks for transformers' models.

transformers makes a mask once for all layers of a kind, with the function that is registered for the attention's name,
and passes it to each attention. Our function makes one of these, which `visible` reads:

    None                      as in transformers' sdpa. Causal: T queries see the first T keys, of which a cache may
                              hold more, and a single query sees all keys. Not causal: all keys are visible.
    bool [B, n]               causal: the last query is at key n - 1, the last valid one; False is padding
    int64 [B, 2, 1, 1 or S]   causal, in a static cache: the position of the first query, and 1 for each valid key
    int32 [B, 1, 1, 1]        not causal: the number of keys of each sequence
    int32 [n + 1]             causal: the offsets of n packed sequences among all B · T positions
    bool [B, 1, 1 or T, S]    the full mask

The masks of transformers' own functions are None, full masks of booleans, or floating and added to the scores.
Integers of other shapes are a user's: transformers' own attention refuses or adds them.
With all but the last, the attention applies the sliding window, which it gets from its module, as flash attention does.
transformers passes masks of four dimensions, and those of two dimensions for flash attention, on unchanged.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedops.torch import sequences
from fusedops.torch.conversion.hf.internals import (
    bidirectional_mask_function,
    causal_mask_function,
    find_packed_sequence_indices,
    is_tracing,
    prepare_padding_mask,
    sdpa_mask,
)

_MASKED = -1e6  # lower numbers are masks, and no bias: 65 536 positions times a slope of ALiBi, at most 1, are above
_MASKED_HALF = -3e4  # of float16, whose lowest number is -65 504


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    config: Any = None,
    **options: Any,
) -> Tensor | None:
    """The mask function that transformers calls, with the arguments of its `sdpa_mask`.

    Args:
        q_offset, kv_offset: positions of the first query and of the first key.
        attention_mask: [B, positions], False for padding.
        local_size: the size of a sliding window, or of chunks.
    """

    def full() -> Tensor | None:
        """transformers' own mask. It is None only where our None means the same."""
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip and q_length in (1, kv_length),
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            device=device,
            config=config,
            **options,
        )

    if allow_is_bidirectional_skip and mask_function is bidirectional_mask_function:
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        return None if padding is None else _keys(padding[:, kv_offset : kv_offset + kv_length])

    def is_plain(function: Callable[..., Any]) -> bool:
        """True for causality, in a sliding window if there is a `local_size`."""
        return function is causal_mask_function if local_size is None else _is_window(config, local_size)

    if not torch.compiler.is_compiling() and (found := _packed(mask_function)):
        numbers, within = found
        return _offsets(numbers) if is_plain(within) else full()
    if not allow_is_causal_skip or not is_plain(mask_function):
        return full()
    if isinstance(q_offset, Tensor) and is_tracing(q_offset):
        if kv_offset != 0 or (q_length == 1 and attention_mask is not None):
            return full()
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        visible = None if padding is None else padding[:, :kv_length]
        return _from_position(q_offset, batch_size, visible, q_length == 1 and local_size is None)
    before = int(q_offset) - kv_offset  # the number of keys before the first query's own
    length = before + q_length
    if length > kv_length:
        return full()
    padding = prepare_padding_mask(attention_mask, length, kv_offset)
    visible = None if padding is None else padding[:, kv_offset : kv_offset + length]
    if visible is not None and not is_tracing(visible) and bool(visible.all()):
        visible = None
    if visible is None and (before == 0 or (q_length == 1 and length == kv_length)):
        return None
    if visible is None and kv_offset == 0:
        position = torch.full((), before, device=device)
        return _from_position(position, batch_size, None, q_length == 1 and local_size is None)
    # The full mask of one query is as small. A mask with kv_offset must not be sliced twice: masks that are made ahead
    # for a static cache reach this function again.
    if q_length == 1 or kv_offset != 0:
        return full()
    return torch.ones(batch_size, length, dtype=torch.bool, device=device) if visible is None else visible


def _from_position(position: Tensor, batch_size: int, visible: Tensor | None, is_last_of_all: bool) -> Tensor:
    """The mask of queries from a position on, over keys of which those in [B, S] are valid.

    `is_last_of_all` stands for a single query without a window, which sees all keys before its own.
    """
    if is_last_of_all and visible is None:
        return (position + 1).to(torch.int32).expand(batch_size)[:, None, None, None]
    first = position.to(torch.int64).expand(batch_size)[:, None]
    valid = torch.ones_like(first) if visible is None else visible.to(torch.int64)
    return torch.stack((first.expand_as(valid), valid), 1)[:, :, None]


def _packed(function: Callable[..., Any]) -> tuple[Tensor, Callable[..., Any]] | None:
    """(the number of each position's sequence, the mask function within sequences) of packed sequences; else None.

    They are variables in the closures of transformers' `packed_sequence_compatibility_function`.
    """
    parts = _enclosed(function, "and_masks").get("mask_functions", ())
    if len(parts) != 2:
        return None
    numbers = _enclosed(parts[0], "packed_sequence_mask_function").get("packed_sequence_mask")
    within = _enclosed(parts[1], "remap_positions_for_packed_sequence").get("mask_function")
    return None if numbers is None or within is None or is_tracing(numbers) else (numbers, within)


def _enclosed(function: Any, maker: str) -> Mapping[str, Any]:
    """The closure of a function that this function of transformers has made; empty for others."""
    is_made = getattr(function, "__module__", None) == causal_mask_function.__module__
    if not is_made or not function.__qualname__.startswith(f"{maker}.<locals>."):
        return {}
    return inspect.getclosurevars(function).nonlocals


def offsets_of(positions: Tensor, batch: int) -> Tensor | None:
    """The offsets of packed sequences, from positions [B or 1, T] that restart as transformers finds it; else None.

    Inside torch's context_parallel a process has parts of one sequence, whose positions jump.
    """
    if positions.dim() != 2 or sequences.are_sharded():
        return None
    numbers = find_packed_sequence_indices(positions.expand(batch, -1))
    return None if numbers is None or is_tracing(numbers) else _offsets(numbers)


def _offsets(numbers: Tensor) -> Tensor:
    """The offsets of packed sequences, from the number of each position's sequence, [B, T]."""
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    first = begins.flatten().nonzero().flatten().to(torch.int32)  # waits for the GPU
    return torch.nn.functional.pad(first, (0, 1), value=numbers.numel())


def positions_of(offsets: Tensor, batch: int, length: int) -> Tensor:
    """The positions of tokens in their packed sequences, [B, T]: they restart in each."""
    place = torch.arange(batch * length, device=offsets.device, dtype=offsets.dtype)
    begin = offsets[torch.searchsorted(offsets, place, right=True) - 1]
    return (place - begin).long().view(batch, length)


def of_packed(
    offsets_q: Tensor, offsets_k: Tensor, batch: int, queries: int, keys: int, is_causal: bool, window: int | None
) -> Tensor:
    """The full mask of packed sequences, [B, 1, T, S]."""

    def places(offsets: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The number of each position's sequence, and the place from its end."""
        place = torch.arange(batch * length, device=offsets.device, dtype=offsets.dtype)
        number = torch.searchsorted(offsets, place, right=True)
        end = offsets[number.clamp(max=offsets.numel() - 1)]
        return number.view(batch, 1, length), (place - end).view(batch, 1, length)

    of_query, query = (x[..., None] for x in places(offsets_q, queries))
    of_key, key = (x[..., None, :] for x in places(offsets_k, keys))
    full = of_query == of_key
    if is_causal:
        full = full & (key <= query)
        if window is not None:
            full = full & (key > query - window)
    return full


def within_packed(mask: Tensor, offsets_q: Tensor, offsets_k: Tensor, batch: int, length: int) -> Tensor:
    """A full mask of as many keys as queries, without pairs of different sequences."""
    same = of_packed(offsets_q, offsets_k, batch, length, length, False, None)
    if mask.dtype is torch.bool:
        return mask & same
    return torch.where(same, mask, torch.finfo(mask.dtype).min)


def _is_window(config: Any, size: int) -> bool:
    """True if this is the size of a sliding window, not of chunks."""
    try:
        return size == getattr(config, "sliding_window", None) != getattr(config, "attention_chunk_size", None)
    except Exception:  # raised by a config whose layers differ
        return False


def _keys(visible: Tensor) -> Tensor | None:
    """The smallest mask of all queries for these keys [B, S]; while tracing, where values are unknown, the full one."""
    if is_tracing(visible):
        return visible[:, None, None]
    lengths = visible.sum(-1, dtype=torch.int32)
    are_first = visible == (torch.arange(visible.shape[-1], device=visible.device) < lengths[:, None])
    all_visible, all_first = torch.stack((visible.all(), are_first.all())).tolist()  # waits for the GPU once
    if all_visible:
        return None
    return lengths[:, None, None, None] if all_first else visible[:, None, None]


@dataclass(frozen=True)
class Visible:
    """The arguments of `fusedops.torch.attention` for the visible keys, which are among the first `keys`."""

    keys: int
    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    lengths: Tensor | None = None
    bias: Tensor | None = None  # added to the scores
    first_query: Tensor | None = None  # position, instead of keys - queries

    def full(self, queries: int, all_keys: int, device: Any) -> Tensor | None:
        """One mask, [B or 1, 1, T or 1, S]; None if all keys are visible."""
        key = torch.arange(all_keys, device=device)
        full = self.mask
        if full is not None and full.shape[-1] < all_keys:
            full = torch.nn.functional.pad(full, (0, all_keys - full.shape[-1]))
        if self.lengths is not None:
            full = key < self.lengths[:, None, None, None]
        if self.causal:
            before = self.keys - queries if self.first_query is None else self.first_query[:, None, None, None]
            query = torch.arange(queries, device=device)[:, None] + before
            causal = key <= query
            if self.window is not None:
                causal = causal & (key > query - self.window)
            causal = causal.view(-1, 1, queries, all_keys)
            full = causal if full is None else full & causal
        return full


def as_bias(bias: Tensor, query: Tensor) -> Tensor:
    """A bias as the operator takes it beside a query.

    Beside the lowest number of a dtype, which stands for a mask, the log-sum-exp of a row has no digits left for the
    backward. So it becomes -inf.
    """
    bias = bias.masked_fill(bias < (_MASKED_HALF if bias.dtype is torch.float16 else _MASKED), -math.inf)
    if query.dtype in (torch.float16, torch.bfloat16):
        return bias if bias.dtype is query.dtype else bias.float()
    return bias.to(query.dtype)


def is_compact(mask: Tensor | None) -> bool:
    """True for a mask of ours that transformers' attentions do not take."""
    return mask is not None and (mask.dim() != 4 or _has_position(mask) or _has_lengths(mask))


def _has_position(mask: Tensor) -> bool:
    """True for the mask of `_from_position`. A user's mask of integers has one head, or all."""
    return mask.dtype is torch.int64 and mask.dim() == 4 and mask.shape[1:3] == (2, 1)


def _has_lengths(mask: Tensor) -> bool:
    return mask.dtype is torch.int32 and mask.dim() == 4 and mask.shape[1:] == (1, 1, 1)


def visible(
    mask: Tensor | None,
    queries: int,
    keys: int,
    is_causal: bool,
    window: int | None,
    bias: Tensor | None = None,
) -> Visible | None:
    """The visible keys for a mask; None if the kernel does not support the mask.

    Args:
        mask: ours, or any that a user passes.
        queries: T.
        keys: S.
        is_causal: True if the attention is causal without a full mask.
        window: the size of the sliding window of a causal attention.
        bias: added to the scores, beside the mask.
    """
    if bias is not None and (bias.dim() != 4 or not bias.dtype.is_floating_point):
        return None
    if mask is None:
        if not is_causal:
            return Visible(keys, bias=bias)
        if queries > keys:
            return None
        visible = keys if queries == 1 else queries
        return Visible(visible, True, window, bias=_of_keys(bias, visible))
    if is_causal and mask.dim() == 2 and mask.dtype is torch.bool and mask.shape[1] <= keys:
        visible = mask.shape[1]
        return Visible(visible, True, window, mask[:, None, None], bias=_of_keys(bias, visible))
    if is_causal and _has_position(mask):
        valid = mask[:, 1:].bool() if mask.shape[-1] > 1 else None
        return Visible(keys, True, window, valid, bias=bias, first_query=mask[:, 0, 0, 0].int())
    if _has_lengths(mask):
        return Visible(keys, lengths=mask.flatten(), bias=bias)
    if mask.dim() != 4 or mask.shape[-1] not in (1, keys):
        return None
    if mask.dtype is torch.bool:
        return Visible(keys, mask=mask, bias=bias)
    return Visible(keys, bias=mask if bias is None else bias + mask) if mask.dtype.is_floating_point else None


def _of_keys(bias: Tensor | None, count: int) -> Tensor | None:
    """The bias of the first keys."""
    return bias if bias is None or bias.shape[-1] == 1 else bias[..., :count]
