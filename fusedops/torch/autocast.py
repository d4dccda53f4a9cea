"""Autocast, for the operators whose declaration asks for it."""

from __future__ import annotations

from typing import Any

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """What autocast casts to on this kind of device; None where it is off. There is none for tensors without data."""
    return torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else None


def autocast(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs in autocast's dtype, where it is on for their device; float64 stays, as in torch's own products."""
    dtype = autocast_dtype(next(x for x in inputs if isinstance(x, torch.Tensor)).device.type)
    if dtype is None:
        return inputs
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in inputs
    )
