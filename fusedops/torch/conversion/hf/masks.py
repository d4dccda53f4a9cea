"""The masks of transformers' models, as small as the kernel takes them.

transformers makes a mask once for all layers of a kind, by the function that is registered for the attention's name,
and hands it to each attention. What ours is, and what `Kept` reads:

    None                      as transformers' sdpa takes it: a causal attention sees the keys of its T queries, of
                              which a cache may hold more, and a single query sees all keys; others see all
    bool [B, n]               causal: the last query stands beside key n, the last that is there; False is padding
    int32 [B, 1, 1, 1]        not causal: how many keys a sequence has
    bool [B, 1, 1 or T, S]    all that is to be said

The first three leave a sliding window to the attention, which gets it from its module, as flash attention does. Four
dimensions are what transformers' own code hands on without a look, and two are what it hands on to flash attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedops.torch.conversion.hf.internals import (
    bidirectional_mask_function,
    causal_mask_function,
    is_tracing,
    prepare_padding_mask,
    sdpa_mask,
)


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
    """What transformers calls for a mask, with the arguments of its own `sdpa_mask`.

    q_offset and kv_offset are the positions of the first query and of the first key; attention_mask [B, positions] is
    False for padding; local_size is the size of a sliding window, or of chunks.
    """

    def full() -> Tensor | None:
        """transformers' own; one that stands for fewer keys than there are would be another None than ours."""
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
    is_causal = mask_function is causal_mask_function if local_size is None else _is_window(config, local_size)
    if not allow_is_causal_skip or not is_causal or (isinstance(q_offset, Tensor) and is_tracing(q_offset)):
        return full()
    before = int(q_offset) - kv_offset  # how many keys are before the first query's own
    length = before + q_length
    if length > kv_length:
        return full()
    padding = prepare_padding_mask(attention_mask, length, kv_offset)
    kept = None if padding is None else padding[:, kv_offset : kv_offset + length]
    if kept is not None and not is_tracing(kept) and bool(kept.all()):
        kept = None
    if kept is None and (before == 0 or (q_length == 1 and length == kv_length)):
        return None
    # One query's full mask is as small. What is cut off at the front could be cut again: masks that are made ahead for
    # a static cache come here a second time.
    if q_length == 1 or kv_offset != 0:
        return full()
    return torch.ones(batch_size, length, dtype=torch.bool, device=device) if kept is None else kept


def _is_window(config: Any, size: int) -> bool:
    """Whether this is the size of a sliding window, and none of chunks."""
    try:
        return size == getattr(config, "sliding_window", None) != getattr(config, "attention_chunk_size", None)
    except Exception:  # a config whose layers differ refuses to be asked
        return False


def _keys(kept: Tensor) -> Tensor | None:
    """The mask of all queries for these keys [B, S], of which the values are looked at where they can be."""
    if is_tracing(kept):
        return kept[:, None, None]
    lengths = kept.sum(-1, dtype=torch.int32)
    are_first = kept == (torch.arange(kept.shape[-1], device=kept.device) < lengths[:, None])
    all_kept, all_first = torch.stack((kept.all(), are_first.all())).tolist()  # waits for the GPU once
    if all_kept:
        return None
    return lengths[:, None, None, None] if all_first else kept[:, None, None]


@dataclass(frozen=True)
class Kept:
    """Which keys a query sees, as `fusedops.torch.attention` takes it; of the first `keys` alone."""

    keys: int
    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    lengths: Tensor | None = None

    def full(self, queries: int, all_keys: int, device: Any) -> Tensor | None:
        """The same as one mask, [B or 1, 1, T or 1, S]; None if all keys are seen."""
        key = torch.arange(all_keys, device=device)
        full = self.mask
        if full is not None and full.shape[-1] < all_keys:
            full = torch.nn.functional.pad(full, (0, all_keys - full.shape[-1]))
        if self.lengths is not None:
            full = key < self.lengths[:, None, None, None]
        if self.causal:
            query = torch.arange(queries, device=device)[:, None] + (self.keys - queries)
            seen = key <= query
            if self.window is not None:
                seen = seen & (key > query - self.window)
            full = seen[None, None] if full is None else full & seen
        return full


def kept(mask: Tensor | None, queries: int, keys: int, is_causal: bool, window: int | None) -> Kept | None:
    """What a mask says of this many queries and keys; None if it is none that the kernel takes.

    Args:
        mask: what an attention gets: ours, or what somebody has made.
        queries: T.
        keys: S.
        is_causal: whether the attention is, where there is no mask.
        window: the size of the sliding window that it has, where it is causal.
    """
    if mask is None:
        if not is_causal:
            return Kept(keys)
        if queries > keys:
            return None
        return Kept(keys if queries == 1 else queries, True, window)
    if mask.dim() == 2 and mask.dtype is torch.bool and mask.shape[1] <= keys:
        return Kept(mask.shape[1], True, window, mask[:, None, None])
    if mask.dtype is torch.int32 and mask.dim() == 4:
        return Kept(keys, lengths=mask.flatten())
    if mask.dtype is torch.bool and mask.dim() == 4 and mask.shape[-1] == keys:
        return Kept(keys, mask=mask)
    return None
