"""Rotary embedding within an attention whose code stays transformers'."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

import fusedops.torch as fo
from fusedops.torch.conversion.hf.layer import HFLayer, stays_half
from fusedops.torch.nn.layer import unfused_input

_NAME = "apply_rotary_pos_emb"  # the function that each of transformers' modules has under this name


class RotaryAttention(HFLayer):
    """Attention whose `forward` is the original's code, with another function under one global name.

    transformers' modules are not changed: models that nobody converted share them.
    """

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        if _fault(kind):
            return {}
        forward = kind.forward  # type: ignore[attr-defined]
        return {"forward": _with_global(forward, _NAME, fused(forward.__globals__[_NAME]))}

    def why_not(self, *inputs: Any) -> str | None:
        return None if inputs else super().why_not() or _fault(self.original)


def _fault(kind: type) -> str | None:
    """Why the function is not to be exchanged in the forward of this class, if it is not."""
    forward = kind.forward  # type: ignore[attr-defined]
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        return "its forward is not a plain function"
    function = forward.__globals__.get(_NAME)
    if _NAME not in forward.__code__.co_names or not isinstance(function, FunctionType):
        return f"its forward calls no {_NAME}"
    # Some models have another formula under this name, and some libraries exchange it.
    if function.__module__ != kind.__module__ or set(function.__code__.co_names) != {"unsqueeze", "rotate_half"}:
        return f"its {_NAME} is not the one that is known"
    return None


def _with_global(function: FunctionType, name: str, value: Any) -> FunctionType:
    """The same function with another value under one of its global names.

    Without a `__name__` among its globals: torch.compile would take those of the module that has that name.
    """
    names = {**function.__globals__, name: value}
    del names["__name__"]
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return copy


def fused(plain: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """A function like apply_rotary_pos_emb, which leaves to `plain` what the kernel does not take."""

    @functools.wraps(plain)
    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if unsqueeze_dim != 1 or not (_fits(q, cos) and _fits(k, cos)):
            return plain(q, k, cos, sin, unsqueeze_dim)
        cos, sin = _half(cos), _half(sin)
        return fo.rope(q, cos, sin, seq_dim=-2), fo.rope(k, cos, sin, seq_dim=-2)

    return apply_rotary_pos_emb


def _fits(x: torch.Tensor, cos: torch.Tensor) -> bool:
    """Whether x is [B, H, T, D] and cos [1 or B, T, D], of a dtype that gives the result x's dtype."""
    if x.dim() != 4 or cos.dim() != 3 or cos.shape[-1] != x.shape[-1] or unfused_input(x):
        return False
    return cos.dtype is x.dtype or stays_half(x, cos)


def _half(angles: torch.Tensor) -> torch.Tensor:
    """[1, T, D] or [B, T, D], which has everything twice, as [T, D/2] or [B, T, D/2]."""
    half = angles[..., : angles.shape[-1] // 2].contiguous()  # here, instead of at each of their uses
    return half[0] if half.shape[0] == 1 else half
