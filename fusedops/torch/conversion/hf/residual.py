"""Residual connections: the sum and the norm that follows it are one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from fusedops.torch.conversion.hf.code import unknown_forward
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.internals import is_watched
from fusedops.torch.nn import LayerNorm, RMSNorm
from fusedops.torch.nn.residual import add_norm as add_fused_norm


def add_norm(norm: Any, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(s), s) with s = x + residual: in one pass, if the norm is ours, takes both, and has no hooks."""
    if can_add(norm) and not is_watched(norm):
        return add_fused_norm(norm, x, residual, norm)
    s = x + residual
    return norm(s), s


def can_add(norm: Any) -> bool:
    """Whether it is a counterpart with such a pass; a subclass of one may compute something else."""
    kind = type(norm)
    return kind in (LayerNorm, RMSNorm) or ("original" in vars(kind) and hasattr(kind, "fused_add"))


def unfused_norm(module: Any, name: str) -> str | None:
    return None if can_add(getattr(module, name)) else f"its {name} is not one of fusedops's"


class PreNormBlock(HFLayer):
    """x + attention(norm(x)), and then x + mlp(norm(x))."""

    needs: ClassVar[tuple[str, ...]] = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    norm_of_sum: ClassVar[str] = "post_attention_layernorm"
    variables: ClassVar[tuple[str, ...]] = ("residual", "_")  # those that the original forward has of its own
    arguments: ClassVar[dict[str, Any]]  # of the original forward behind the hidden states, with their defaults

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        return {"arguments": _arguments(kind.forward)}  # type: ignore[attr-defined]

    def unfused(self) -> str | None:
        return self._unfused_forward() or unfused_norm(self, self.norm_of_sum)

    def _unfused_forward(self) -> str | None:
        return unknown_forward(self.original, self.needs, self.variables)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = self._bound(args, kwargs)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **arguments)
        return self._finish(attended, hidden_states)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments after the hidden states, by name, as Python binds them to the original forward."""
        given = dict(zip(self.arguments, args, strict=False))
        if len(given) < len(args) or given.keys() & kwargs.keys():
            raise TypeError(f"{type(self).__name__}.forward() got too many arguments, or one of them twice")
        return {**self.arguments, **given, **kwargs}

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


class DropoutBlock(PreNormBlock):
    """x + dropout(attention(norm(x))), and then x + dropout(mlp(norm(x))), as in Phi-3."""

    needs = (*PreNormBlock.needs, "resid_attn_dropout", "resid_mlp_dropout")
    variables = ("residual", "self_attn_weights")

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x, residual = add_norm(self.post_attention_layernorm, self.resid_attn_dropout(attended), residual)
        return residual + self.resid_mlp_dropout(self.mlp(x))


class GPT2Block(PreNormBlock):
    """x + attention(norm(x)), and then x + mlp(norm(x)). With attention to an encoder, transformers' own code."""

    needs = ("ln_1", "attn", "ln_2", "mlp")
    norm_of_sum = "ln_2"
    of_encoder = ("encoder_hidden_states", "encoder_attention_mask")

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = self._bound(args, kwargs)
        encoder_hidden_states, _ = (arguments.pop(name) for name in self.of_encoder)
        if encoder_hidden_states is not None:
            return super(PreNormBlock, self).forward(hidden_states, *args, **kwargs)
        attended, _ = self.attn(self.ln_1(hidden_states), **arguments)
        x, residual = add_norm(self.ln_2, attended, hidden_states)
        return residual + self.mlp(x)

    def _unfused_forward(self) -> str | None:
        return unknown_forward(
            self.original,
            (*self.needs, "crossattention", "ln_cross_attn", "hasattr", "ValueError"),
            (*self.variables, "attn_output", "cross_attn_output", "feed_forward_hidden_states"),
        )


class PostNorm(HFLayer):
    """norm(dropout(dense(x)) + residual), as in BERT."""

    needs = ("dense", "dropout", "LayerNorm")

    def unfused(self) -> str | None:
        return unknown_forward(self.original, self.needs) or unfused_norm(self, "LayerNorm")

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        return add_norm(self.LayerNorm, self.dropout(self.dense(hidden_states)), input_tensor)[0]


def _arguments(forward: Callable[..., Any]) -> dict[str, Any]:
    _, _, *rest = inspect.signature(forward).parameters.values()
    return {parameter.name: parameter.default for parameter in rest if parameter.kind is not parameter.VAR_KEYWORD}
