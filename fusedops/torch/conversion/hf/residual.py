"""Residual connections: the sum and the norm that follows it are one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from fusedops.torch.conversion.hf.layer import HFLayer, is_watched, unknown_forward
from fusedops.torch.nn.layer import FusedLayer


def add_norm(norm: Any, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(s), s) with s = x + residual: in one pass, if the norm is ours, takes both, and nobody watches it."""
    if can_add(norm) and x.dtype is residual.dtype and not norm.why_not(x) and not is_watched(norm):
        return norm.fused_add(x, residual)
    s = residual + x
    return norm(s), s


def can_add(norm: Any) -> bool:
    return isinstance(norm, FusedLayer) and hasattr(norm, "fused_add")


class PreNormBlock(HFLayer):
    """x + attention(norm(x)), and then x + mlp(norm(x))."""

    needs: ClassVar[tuple[str, ...]] = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    norm_of_sum: ClassVar[str] = "post_attention_layernorm"
    arguments: ClassVar[dict[str, Any]]  # of the original forward behind the hidden states, with their defaults

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        return {"arguments": _arguments(kind.forward)}  # type: ignore[attr-defined]

    def why_not(self, *inputs: Any) -> str | None:
        if inputs:
            return None
        return (
            super().why_not() or unknown_forward(self.original, self.needs, ("residual", "_")) or self._unfused_norm()
        )

    def _unfused_norm(self) -> str | None:
        return None if can_add(getattr(self, self.norm_of_sum)) else f"its {self.norm_of_sum} is not one of fusedops's"

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = {**self.arguments, **dict(zip(self.arguments, args, strict=False)), **kwargs}
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **arguments)
        return self._finish(attended, hidden_states)

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x, residual = add_norm(self.post_attention_layernorm, attended, residual)
        return residual + self.mlp(x)


class FourNormBlock(PreNormBlock):
    """x + norm(attention(norm(x))), and then x + norm(mlp(norm(x))), as in Gemma 2."""

    needs = (
        "input_layernorm",
        "self_attn",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "mlp",
        "post_feedforward_layernorm",
    )
    norm_of_sum = "pre_feedforward_layernorm"

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x, residual = add_norm(self.pre_feedforward_layernorm, self.post_attention_layernorm(attended), residual)
        return residual + self.post_feedforward_layernorm(self.mlp(x))


def _arguments(forward: Callable[..., Any]) -> dict[str, Any]:
    _, _, *rest = inspect.signature(forward).parameters.values()
    return {parameter.name: parameter.default for parameter in rest if parameter.kind is not parameter.VAR_KEYWORD}
