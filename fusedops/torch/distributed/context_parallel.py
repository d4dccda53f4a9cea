"""Attention over sequences whose positions are divided among the processes of a group.

Every process gathers the keys and values that its queries see, and calls the operator once for each chunk of these.
Nothing is merged, and the backward adds the gradients of keys and values in the order of the ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from fusedops.checks import optional_count, optional_number
from fusedops.torch import internals
from fusedops.torch.distributed.agreement import description, differing_calls
from fusedops.torch.errors import renamed
from fusedops.torch.operators import OPERATORS as ops

Group = Any  # torch.distributed.ProcessGroup, or None: the default one

_RING = "distributed.ring_attention"


@torch.compiler.disable  # it waits for the other processes' description of their calls
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    lengths: Tensor | None = None,
    softcap: float = 0.0,
    offsets: Tensor | None = None,
    load_balance: bool = False,
    seq_dim: int = -3,
) -> Tensor:
    """Self-attention over sequences of which each process of a group has a part of the positions.

    The parts are equal, and in the order of ranks: those of `shard_positions`. Keys and values are gathered, so that a
    process needs memory for those of all positions that its queries see, beside its own queries and results.

    Args:
        q: [..., T / ranks, H, D], or [..., H, T / ranks, D] with `seq_dim=-2`: the part of this process. With `offsets`
            [N / ranks, H, D].
        k, v: the same part of the keys and values; their heads divide H.
        group: the process group; None is the default one. Each of its processes makes the call.
        causal, scale, window, softcap: as in `attention`, for positions in the whole sequence.
        lengths: the numbers of keys of the whole sequences, as in `attention`; the same on all processes. One outside
            of [0, T] counts as 0 or T.
        offsets: int32 [B + 1], ascending from 0 to N: B sequences are packed one behind the other, as in
            `attention_varlen`. The same on all processes.
        load_balance: the parts are those of `shard_positions(..., load_balance=True)`. If causal, all processes then
            have the same work.
        seq_dim: the dimension that holds the positions, -3 or -2.

    Returns:
        The part of the result that belongs to q.

    Raises:
        RuntimeError, ValueError, TypeError: an argument has the wrong shape or dtype, a number is out of range, the
            processes pass other shapes, dtypes or options than each other, or the group has no backend for q's device.
            All processes raise it.

    Source: Dubey et al., "The Llama 3 herd of models", 2024: keys and values are gathered rather than sent in a ring.
    """
    options: dict[str, Any] = {"causal": causal, "scale": scale, "softcap": softcap}
    named = {"q": q, "k": k, "v": v, "lengths": lengths, "offsets": offsets}
    with suppress(TypeError):  # raised below, once all processes have compared: 1 and 1.0 are alike
        options["scale"] = optional_number(_RING, "scale", scale)
    _check_alike(group, named, {**options, "window": window, "seq_dim": seq_dim, "load_balance": load_balance})
    options["scale"] = optional_number(_RING, "scale", scale)
    windowed = optional_count(_RING, "window", window)
    dim = seq_dim if offsets is None else -3
    places = _places(group, load_balance)
    _check_parts(q, k, v, dim, len(places))
    positions = q.shape[dim] * dist.get_world_size(group)
    if offsets is not None:
        _check_offsets(offsets, positions, lengths, windowed > 0 and not causal)
    own = (x.movedim(dim, 0).contiguous() for x in (k, v))
    prefixes = [x.movedim(0, dim) for x in _Prefixes.apply(_Exchange(group, load_balance, causal), *own)]
    chunks = zip(
        places, q.tensor_split(len(places), dim), prefixes[: len(places)], prefixes[len(places) :], strict=True
    )
    results = []
    for place, queries, keys, values in chunks:
        size, seen = queries.shape[dim], keys.shape[dim]
        begin, end = place * size, (place + 1) * size
        # The operators align the last query with the last key, which is `seen - end` positions further on.
        options["window"] = windowed and windowed + seen - end
        try:
            if offsets is not None:
                parts = offsets.clamp(begin, end) - begin, offsets.clamp(max=seen)
                y, _ = ops.attention_varlen(queries, keys, values, *parts, **options)
            else:
                kept = None if lengths is None else lengths.clamp(0, seen)
                y, _ = ops.attention(queries, keys, values, None, kept, None, seq_dim=seq_dim, **options)
        except Exception as error:
            name = "attention" if offsets is None else "attention_varlen"
            raise renamed(error, name, _RING) from None
        results.append(y)
    return torch.cat(results, dim)


def shard_positions(x: Tensor, *, group: Group, dim: int = 1, load_balance: bool = False) -> Tensor:
    """The part of this process of a tensor with all positions, such as tokens, labels or position ids.

    Args:
        x: of any dtype; the same on all processes.
        group: the process group; None is the default one.
        dim: the dimension of the positions, whose size the number of parts divides.
        load_balance: of 2 · ranks chunks, rank r gets number r and number 2 · ranks - 1 - r, as in torch's
            context_parallel. Otherwise the parts follow each other.

    Raises:
        ValueError: the number of positions is no multiple of the number of chunks.
    """
    places = _places(group, load_balance)
    count = dist.get_world_size(group) * len(places)
    if x.shape[dim] % count:
        shape = list(x.shape)
        raise ValueError(
            f"fusedops.distributed.shard_positions: x must have a multiple of {count} positions; got shape {shape}"
        )
    chunks = x.tensor_split(count, dim)
    return torch.cat([chunks[place] for place in places], dim)


def gather_positions(x: Tensor, *, group: Group, dim: int = 1, load_balance: bool = False) -> Tensor:
    """The tensor with all positions, of the parts that `shard_positions` gives to the processes.

    It is differentiable to any order: the gradient of a part is the sum over the processes, in the order of ranks.

    Args:
        x: the part of this process, of one shape and dtype on all of them.
        group, dim, load_balance: as in `shard_positions`.
    """
    count = dist.get_world_size(group)
    parts = x.movedim(dim, 0)
    gathered = _AllToAll.apply(parts.expand(count, *parts.shape).contiguous(), group)
    if load_balance:
        order = [place for rank in range(count) for place in _places(group, load_balance, rank)]
        chunks = gathered.reshape(2 * count, -1, *parts.shape[1:]).unbind()
        gathered = torch.stack([chunks[order.index(place)] for place in range(2 * count)])
    return gathered.flatten(0, 1).movedim(0, dim)


class _AllToAll(torch.autograd.Function):
    """Sends x[rank] to each rank. The transpose of this is the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _AllToAll.apply(dy.contiguous(), ctx.group), None


class _Prefixes(torch.autograd.Function):
    """`_Exchange.prefixes`, and in the backward its transpose, `_Exchange.sums`."""

    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        return tuple(exchange.prefixes(parts))

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Sums.apply(ctx.exchange, *(dy.contiguous() for dy in dys))


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, *prefixes: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        return tuple(exchange.sums(prefixes))

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Prefixes.apply(ctx.exchange, *(dy.contiguous() for dy in dys))


class _Exchange:
    """Sends chunks of positions, which are the first dimension, to the processes that need them.

    A chunk of queries sees a prefix of the whole sequence: up to its own end if causal, otherwise all of it. A process
    needs the longest prefix that one of its chunks sees.
    """

    def __init__(self, group: Group, load_balance: bool, causal: bool) -> None:
        self.group, self.rank = group, dist.get_rank(group)
        self.places = [_places(group, load_balance, rank) for rank in range(dist.get_world_size(group))]
        self.own = self.places[self.rank]
        count = sum(map(len, self.places))
        self.seen = [place + 1 if causal else count for place in self.own]  # chunks of each prefix
        self.needed = [max(places) + 1 if causal else count for places in self.places]  # chunks, by rank

    def prefixes(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The prefixes that this process's chunks see: those of the first tensor, then those of the next one."""
        sent, received = self._messages(), self._messages()
        wholes = []
        for x in parts:
            chunks = _chunked(x, len(self.own))
            whole = x.new_empty(self.needed[self.rank], *chunks.shape[1:])
            for rank, places in enumerate(self.places):
                sent[rank] += [
                    chunk for chunk, place in zip(chunks, self.own, strict=True) if place < self.needed[rank]
                ]
                received[rank] += [whole[place] for place in places if place < len(whole)]
            wholes.append(whole)
        self._send(sent, received)
        return [whole[:count].flatten(0, 1) for whole in wholes for count in self.seen]

    def sums(self, prefixes: Sequence[Tensor]) -> list[Tensor]:
        """The transpose: each chunk of this process as the sum over all processes that need it, in their order."""
        sent, received = self._messages(), self._messages()
        terms = []
        for first in range(0, len(prefixes), len(self.seen)):
            chunks = list(map(_chunked, prefixes[first:], self.seen))
            totals = [
                functools.reduce(torch.add, [x[place] for x in chunks if place < len(x)])
                for place in range(self.needed[self.rank])
            ]
            for rank, places in enumerate(self.places):
                sent[rank] += [totals[place] for place in places if place < len(totals)]
            for place in self.own:
                ranks = [rank for rank, needed in enumerate(self.needed) if place < needed]
                terms.append(totals[0].new_empty(len(ranks), *totals[0].shape))
                for rank, term in zip(ranks, terms[-1], strict=True):
                    received[rank].append(term)
        self._send(sent, received)
        results = [each.sum(0) for each in terms]
        return [torch.cat(results[i : i + len(self.own)]) for i in range(0, len(results), len(self.own))]

    def _messages(self) -> list[list[Tensor]]:
        return [[] for _ in self.places]

    def _send(self, sent: Sequence[Sequence[Tensor]], received: Sequence[Sequence[Tensor]]) -> None:
        """Tensors by rank. A pair of processes has them in the same order."""
        group = self.group or dist.group.WORLD
        messages = []
        for rank in range(len(self.places)):
            if rank != self.rank:
                peer = dist.get_global_rank(group, rank)
                for function, tensors in ((dist.isend, sent[rank]), (dist.irecv, received[rank])):
                    messages += [dist.P2POp(function, x, peer, group) for x in tensors if x.numel()]
        works = dist.batch_isend_irecv(messages) if messages else []
        for x, y in zip(sent[self.rank], received[self.rank], strict=True):
            y.copy_(x)
        for work in works:
            work.wait()


def _chunked(x: Tensor, count: int) -> Tensor:
    return x.reshape(count, len(x) // count, *x.shape[1:])


def _places(group: Group, load_balance: bool, rank: int | None = None) -> Sequence[int]:
    """The chunks of a process, of this one by default, among those of the whole sequence."""
    rank = dist.get_rank(group) if rank is None else rank
    return (rank, 2 * dist.get_world_size(group) - 1 - rank) if load_balance else (rank,)


def _check_alike(group: Group, inputs: dict[str, Any], options: dict[str, Any]) -> None:
    """Raises an error on all processes if one of them makes another call."""
    device = next((x.device for x in inputs.values() if _is_plain(x)), None)
    if device is None:
        return
    _check_backend(group, device)
    call = ", ".join(
        [*(f"{name} {_described(x)}" for name, x in inputs.items()), *(f"{k}={v!r}" for k, v in options.items())]
    )
    calls = differing_calls(group, device, call)
    if calls is None:
        return
    got = "; ".join(f"{each} on rank {rank}" for rank, each in enumerate(calls))
    raise RuntimeError(f"fusedops.{_RING}: all processes must pass the same shapes, dtypes and options; got {got}")


def _described(x: Any) -> str:
    has_gradient = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
    gradient = " with a gradient" if has_gradient else ""
    return f"{description(x)}{gradient}"


def _is_plain(x: Any) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and not internals.is_distributed(x)


def _check_backend(group: Group, device: torch.device) -> None:
    backends = dist.get_backend_config(group)
    backend = dict(each.split(":") for each in backends.split(",")).get(device.type)
    if backend is None or (backend, device.type) == ("gloo", "cuda"):  # Gloo sends no tensors of GPUs
        raise ValueError(
            f"fusedops.{_RING}: group must have a backend for tensors on "
            f"{device.type}, such as NCCL for CUDA; got {backends}"
        )


def _check_parts(q: Tensor, k: Tensor, v: Tensor, dim: int, chunks: int) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not _is_plain(x):
            got = type(x).__name__
            raise TypeError(f"fusedops.{_RING}: {name} must be a torch.Tensor, the part of this process; got {got}")
        if x.dim() < 3:
            raise RuntimeError(f"fusedops.{_RING}: {name} must have at least 3 dimensions; got shape {list(x.shape)}")
        if x.shape[dim] != q.shape[dim]:
            raise RuntimeError(
                f"fusedops.{_RING}: {name} must have as many positions as q, {q.shape[dim]}; got shape {list(x.shape)}"
            )
    if q.shape[dim] % chunks:
        raise RuntimeError(
            f"fusedops.{_RING}: q must have an even number of positions with load_balance; got shape {list(q.shape)}"
        )


def _check_offsets(offsets: Tensor, positions: int, lengths: Tensor | None, has_window_alone: bool) -> None:
    if lengths is not None:
        raise ValueError(f"fusedops.{_RING}: lengths must be None beside offsets; got a tensor")
    if has_window_alone:
        raise ValueError(f"fusedops.{_RING}: window must be None beside offsets unless causal; got a number")
    if offsets.device.type == "cpu" and offsets.numel() and (int(offsets[0]), int(offsets[-1])) != (0, positions):
        raise RuntimeError(
            f"fusedops.{_RING}: offsets must be from 0 to {positions}, the positions of all processes; "
            f"got {int(offsets[0])} to {int(offsets[-1])}"
        )


@torch.compiler.disable
def attention_in_context(attention: FunctionType, *inputs: Tensor, **options: Any) -> Tensor:
    """`ring_attention` over the mesh and in the order of torch's context_parallel, which has set `attention`."""
    mesh, load_balance = internals.context_parallel(attention)
    return ring_attention(*inputs, group=mesh.get_group(), load_balance=load_balance, **options)
