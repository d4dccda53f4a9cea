"""PyTorch: the same values in other memory layouts."""

from __future__ import annotations

import math


def transposed(x):
    return x.mT.contiguous().mT if x.dim() > 1 else x


def permuted(x):
    """Stored in the reverse order of its dimensions."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def every_second(x):
    return x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x


def holes(x, *shape):
    """Memory for x, filled with values that must not be read."""
    return x.new_full(shape, math.nan if x.is_floating_point() else True if x.dtype.itemsize == 1 else 2**31 - 1)


def spaced_rows(x):
    """Contiguous rows, 16 elements apart: rows stay aligned."""
    return holes(x, *x.shape[:-1], x.shape[-1] + 16)[..., :-16].copy_(x) if x.dim() else x


def rows_spaced_by_one(x):
    return holes(x, *x.shape[:-1], x.shape[-1] + 1)[..., :-1].copy_(x) if x.dim() else x


def spaced_batches(x):
    return x.repeat_interleave(2, 0)[::2] if x.dim() > 2 else x


def misaligned(x):
    """One element off the alignment of vector loads."""
    return holes(x, x.numel() + 1)[1:].view(x.shape).copy_(x)


def offset_by_a_row(x):
    return holes(x, x.shape[0] + 1, *x.shape[1:])[1:].copy_(x) if x.dim() else x


def expanded(x):
    """The same values along the first dimension, stored once."""
    return x[:1].expand(x.shape) if x.dim() else x


def negated(x):
    """The same values, stored negated with torch's negative bit, like the imaginary part of x.conj()."""
    return x.neg()._neg_view() if x.is_floating_point() else x


LAYOUTS = (
    transposed,
    permuted,
    every_second,
    spaced_rows,
    rows_spaced_by_one,
    spaced_batches,
    misaligned,
    offset_by_a_row,
    expanded,
    negated,
)


def compact(x):
    """A contiguous and aligned copy."""
    return x.contiguous().clone()
