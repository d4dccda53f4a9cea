"""Residual connections, with the sum and the following norm in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from fusedops.torch.conversion.hf.layer import ONLY_ALIKE, HFLayer
from fusedops.torch.internals import is_watched, shape
from fusedops.torch.nn import Dropout, LayerNorm, RMSNorm
from fusedops.torch.nn.dropout import add_dropped, unfused_rate
from fusedops.torch.nn.layer import REFUSED, are_alike, is_left_to_compiler, unfused_input
from fusedops.torch.nn.residual import add_norm as add_fused_norm


def add_norm(
    norm: Any, x: torch.Tensor, residual: torch.Tensor, dropout: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(s), s) with s = dropout(x) + residual, in one pass if the norm is ours and neither module has hooks."""
    x, rate = _deferred_dropout(dropout, x)
    takes_sum = can_add(norm) and not is_watched(norm)
    if takes_sum and norm.is_plain(x) and are_alike(x, residual):
        try:
            return norm.plain_add(x, residual, rate)
        except REFUSED:
            pass  # the code below finds the reason
    is_broadcast = not unfused_input(x) and shape(x) != shape(residual)
    if takes_sum and not is_broadcast:
        return add_fused_norm(norm, x, residual, norm, rate)
    s = add_dropped(x, residual, rate)
    return norm(s), s


def add(x: torch.Tensor, residual: torch.Tensor, dropout: Any = None) -> torch.Tensor:
    """residual + dropout(x), in one pass if the dropout has no hooks."""
    x, rate = _deferred_dropout(dropout, x)
    return add_dropped(x, residual, rate)


def _deferred_dropout(dropout: Any, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """(x, rate) for a dropout that a kernel can fuse; otherwise (dropout(x), 0)."""
    if dropout is None:
        return x, 0.0
    if type(dropout) not in (Dropout, torch.nn.Dropout) or is_watched(dropout):
        return dropout(x), 0.0
    if not dropout.training or dropout.p == 0:  # saves the call
        return x, 0.0
    if unfused_rate(dropout.p) or unfused_input(x):
        return dropout(x), 0.0
    return x, dropout.p


def can_add(norm: Any) -> bool:
    """True for our norms with `fused_add`. A user's subclass of one may compute something else."""
    kind = type(norm)
    return kind in (LayerNorm, RMSNorm) or ("original" in vars(kind) and getattr(kind, "can_add", False))


def unfused_norm(module: Any, name: str) -> str | None:
    return None if can_add(getattr(module, name)) else f"its {name} is not one of fusedops's"


class _Block(HFLayer):
    """A block of two residual connections. The norm after the first one is fused with its sum.

    `after_attention` and `after_mlp` are modules before the two sums.
    """

    after_attention: ClassVar[tuple[str, ...]] = ()
    after_mlp: ClassVar[tuple[str, ...]] = ()
    positional: ClassVar[int] = 0  # number of arguments that the attention gets by position
    arguments: ClassVar[Mapping[str, Any]]  # defaults of the original forward's arguments after the hidden states
    required: ClassVar[tuple[str, ...]]  # arguments without a default
    further: ClassVar[str | None]  # the name of the `**` parameter
    forwarded: ClassVar[frozenset[str]]  # arguments that the attention gets under their own names

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        _, _, *rest = inspect.signature(kind.forward).parameters.values()  # type: ignore[attr-defined]
        stars = [parameter.name for parameter in rest if parameter.kind is parameter.VAR_KEYWORD]
        arguments = {parameter.name: parameter.default for parameter in rest if parameter.name not in stars}
        required = tuple(name for name, default in arguments.items() if default is inspect.Parameter.empty)
        return {"arguments": arguments, "required": required, "further": stars[0] if stars else None}

    def unfused(self) -> str | None:
        return unfused_norm(self, self.names["norm_of_sum"])

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments after the hidden states, by name, as Python binds them to the original forward."""
        given = dict(zip(self.arguments, args, strict=False)) if args else {}
        if len(given) < len(args) or any(name in kwargs for name in given):
            raise TypeError(f"{type(self).__name__}.forward() got too many arguments, or one of them twice")
        bound = {**self.arguments, **given, **kwargs}
        for name in self.required:
            if bound[name] is inspect.Parameter.empty:
                raise TypeError(f"{type(self).__name__}.forward() is missing its argument {name!r}")
        if self.further is None and len(bound) > len(self.arguments):
            name = next(name for name in kwargs if name not in self.arguments)
            raise TypeError(f"{type(self).__name__}.forward() got an unexpected argument {name!r}")
        return bound

    def _attention_arguments(self, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the named arguments of the attention."""
        first = [bound[name] for name in [*self.arguments][: self.positional]]
        named = {name: bound[name] for name in bound if name in self.forwarded}
        if self.further in self.forwarded:
            named |= {name: bound[name] for name in bound if name not in self.arguments}
        return first, named

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        attended, dropout = self.undropped(self.after_attention, attended)
        x, residual = add_norm(self.part("norm_of_sum"), attended, residual, dropout)
        y, dropout = self.undropped(self.after_mlp, self.part("mlp")(x))
        return add(y, residual, dropout)


class PreNormBlockByPosition(_Block):
    """x + attention(norm(x)), then x + mlp(norm(x)). The attention returns two results."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_left_to_compiler(hidden_states):
            return super(HFLayer, self).forward(hidden_states, *args, **kwargs)
        first, named = self._attention_arguments(self._bound(args, kwargs))
        attended, _ = self.part("attention")(self.part("norm")(hidden_states), *first, **named)
        return self._finish(attended, hidden_states)


class PreNormBlock(_Block):
    """PreNormBlockByPosition whose attention gets the hidden states by name, which hooks can observe."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_left_to_compiler(hidden_states):
            return super(HFLayer, self).forward(hidden_states, *args, **kwargs)
        _, named = self._attention_arguments(self._bound(args, kwargs))
        attended, _ = self.part("attention")(hidden_states=self.part("norm")(hidden_states), **named)
        return self._finish(attended, hidden_states)


class MixtureBlock(PreNormBlock):
    """PreNormBlock whose MLP returns two results."""

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x, residual = add_norm(self.part("norm_of_sum"), attended, residual)
        return residual + self.part("mlp")(x)[0]


class ScaledBlock(PreNormBlock):
    """x + m · attention(norm(x)), then x + m · mlp(norm(x)), as in Granite."""

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        multiplier = self.part("multiplier")
        x, residual = add_norm(self.part("norm_of_sum"), attended * multiplier, residual)
        return residual + self.part("mlp")(x) * multiplier


class VisionBlock(_Block):
    """A pre-norm block whose attention returns one result."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_left_to_compiler(hidden_states):
            return super(HFLayer, self).forward(hidden_states, *args, **kwargs)
        first, named = self._attention_arguments(self._bound(args, kwargs))
        return self._finish(self.part("attention")(self.part("norm")(hidden_states), *first, **named), hidden_states)


class GPT2Block(PreNormBlockByPosition):
    """PreNormBlockByPosition with optional cross-attention, for which transformers' own code runs."""

    optional = ("of_encoder", "norm_of_encoder")
    encoder: ClassVar[int] = 2  # position of `encoder_hidden_states`

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_left_to_compiler(hidden_states):
            return super(HFLayer, self).forward(hidden_states, *args, **kwargs)
        bound = self._bound(args, kwargs)
        if bound[[*self.arguments][self.encoder]] is not None:
            return super(HFLayer, self).forward(hidden_states, *args, **kwargs)
        _, named = self._attention_arguments(bound)
        attended, _ = self.part("attention")(self.part("norm")(hidden_states), **named)
        return self._finish(attended, hidden_states)


class PostNorm(HFLayer):
    """norm(dropout(dense(x)) + residual), as in BERT."""

    def unfused(self) -> str | None:
        return unfused_norm(self, self.names["norm"])

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        return add_norm(self.part("norm"), self.part("dense")(hidden_states), input_tensor, self.part("dropout"))[0]


class _Dropped(HFLayer):
    """A residual connection after a dropout, without a norm that could be fused."""

    def unfused(self) -> str | None:
        return None if isinstance(self.part("dropout"), torch.nn.Dropout) else ONLY_ALIKE


class DroppedSum(_Dropped):
    """dropout(dense(x)) + residual, as in ESM."""

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        return add(self.part("dense")(hidden_states), input_tensor, self.part("dropout"))


class DroppedMLP(_Dropped):
    """x + dropout(mlp(norm(x))), as in T5."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return add(self.part("mlp")(self.part("norm")(hidden_states)), hidden_states, self.part("dropout"))


class DroppedSelfAttention(_Dropped):
    """x + dropout(attention(norm(x))) with a position bias, as in T5."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        position_bias: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        named = {"mask": attention_mask, "position_bias": position_bias, "past_key_values": past_key_values}
        attended, *rest = self.part("attention")(self.part("norm")(hidden_states), **named, **kwargs)
        return (add(attended, hidden_states, self.part("dropout")), *rest)


class DroppedCrossAttention(_Dropped):
    """x + dropout(cross_attention(norm(x), key_value_states)), as in T5."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: Any,
        attention_mask: Any = None,
        position_bias: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        named = {"mask": attention_mask, "position_bias": position_bias, "past_key_values": past_key_values}
        x = self.part("norm")(hidden_states)
        attended, *rest = self.part("attention")(x, key_value_states=key_value_states, **named, **kwargs)
        return (add(attended, hidden_states, self.part("dropout")), *rest)
