"""Rotary embedding within an attention whose code stays transformers'."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

import fusedops.torch as fo
from fusedops.conversion import UnknownClass
from fusedops.torch.conversion.hf.code import with_global
from fusedops.torch.conversion.hf.layer import HFLayer, stays_half
from fusedops.torch.nn.layer import unfused_input

_NAME = "apply_rotary_pos_emb"  # the function that each of transformers' modules has under this name

# What that function calls, where it turns all features, and where it turns those that have an angle.
_WHOLE = {"unsqueeze", "rotate_half"}
_PARTIAL = {*_WHOLE, "shape", "torch", "cat"}


class RotaryAttention(HFLayer):
    """Attention whose `forward` is the original's code, with another function under one global name.

    transformers' modules are not changed: models that nobody converted share them.
    """

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        fault = _fault(kind)
        if fault:
            raise UnknownClass(fault)
        forward = kind.forward  # type: ignore[attr-defined]
        return {"forward": with_global(forward, _NAME, fused(forward.__globals__[_NAME]))}

    def unfused(self) -> str | None:
        return _fault(self.original)


def _fault(kind: type) -> str | None:
    """Why the function must not be replaced in the forward of this class, if so."""
    forward = kind.forward  # type: ignore[attr-defined]
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        return "its forward is not a plain function"
    function = forward.__globals__.get(_NAME)
    if _NAME not in forward.__code__.co_names or not isinstance(function, FunctionType):
        return f"its forward calls no {_NAME}"
    # Some models have another formula under this name, and some libraries exchange it.
    if function.__module__ != kind.__module__ or set(function.__code__.co_names) not in (_WHOLE, _PARTIAL):
        return f"its {_NAME} is not the one that is known"
    return None


def fused(plain: FunctionType) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """A function like apply_rotary_pos_emb, which calls `plain` for inputs that the kernel does not take."""
    is_partial = "cat" in plain.__code__.co_names

    @functools.wraps(plain)
    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if unsqueeze_dim != 1 or not (_fits(q, cos, is_partial) and _fits(k, cos, is_partial)):
            return plain(q, k, cos, sin, unsqueeze_dim)
        cos, sin = _half(cos), _half(sin)
        return _rotated(q, cos, sin), _rotated(k, cos, sin)

    return apply_rotary_pos_emb


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, H, T, D] rotated, in memory as it lies: mostly [B, T, H, D], as a product left it. So does what attention
    makes of it and the gradients, which the products on both sides then take without a copy."""
    if x.stride(1) > x.stride(2):
        return fo.rope(x, cos, sin, seq_dim=-2)
    return fo.rope(x.transpose(1, 2), cos, sin).transpose(1, 2)


def _fits(x: torch.Tensor, cos: torch.Tensor, is_partial: bool) -> bool:
    """Whether x is [B, H, T, D] and cos [1 or B, T, D], or less than D, of a dtype that gives the result x's dtype.

    The kernel has no gradient of the angles.
    """
    if x.dim() != 4 or cos.dim() != 3 or cos.requires_grad or unfused_input(x):
        return False
    if cos.shape[-1] > x.shape[-1] or (cos.shape[-1] < x.shape[-1] and not is_partial):
        return False
    return cos.dtype is x.dtype or stays_half(x, cos)


def _half(angles: torch.Tensor) -> torch.Tensor:
    """[1, T, D] or [B, T, D], which has everything twice, as [T, D/2] or [B, T, D/2]."""
    half = angles[..., : angles.shape[-1] // 2].contiguous()  # here, instead of at each of their uses
    return half[0] if half.shape[0] == 1 else half
