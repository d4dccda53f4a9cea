"""Autocast, for the operators whose declaration asks for it."""

from __future__ import annotations

from typing import Any

import torch


def autocast(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs in autocast's dtype, where it is on for their device; float64 stays, as in torch's own products."""
    device = next(x for x in inputs if isinstance(x, torch.Tensor)).device.type
    if not torch.is_autocast_enabled(device):
        return inputs
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in inputs
    )
