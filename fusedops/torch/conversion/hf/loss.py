"""The loss of a language model, from the logits as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss

import fusedops.torch as fo
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.nn.layer import unfused_input


class LanguageModel(HFLayer):
    """A model whose `loss_function` is ours where it would be transformers'; what somebody has set stays."""

    needs = ("loss_function",)

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        theirs = kind.loss_function  # type: ignore[attr-defined]

        def ours(self: Any) -> Callable[..., torch.Tensor]:
            return _fused(theirs.fget(self))

        return {"loss_function": property(ours, theirs.fset, theirs.fdel, theirs.__doc__)}

    def why_not(self, *inputs: Any) -> str | None:
        return None if inputs else super().why_not() or self._unfused_loss()

    def _unfused_loss(self) -> str | None:
        loss = self.original.loss_function.fget(self)  # type: ignore[attr-defined]
        if _fused(loss) is not loss:
            return None
        return f"its loss_function is {getattr(loss, '__name__', type(loss).__name__)}"


def causal_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """transformers' ForCausalLMLoss: each position's logits are for the label that comes next."""
    if shift_labels is None:
        assert labels is not None
        shift_labels = torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)
    return masked_loss(logits, shift_labels, vocab_size, num_items_in_batch, ignore_index)


def masked_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> torch.Tensor:
    """transformers' ForMaskedLMLoss, without a copy of the logits in float32: the kernel computes in it."""
    if unfused_input(logits):
        return ForMaskedLMLoss(logits, labels, vocab_size, num_items_in_batch, ignore_index, **kwargs)
    rows, labels = logits.reshape(-1, vocab_size), labels.reshape(-1).to(logits.device)
    if num_items_in_batch is None:
        return fo.cross_entropy(rows, labels, ignore_index=ignore_index)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return fo.cross_entropy(rows, labels, ignore_index=ignore_index, reduction="sum") / num_items_in_batch


def _fused(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Ours, for a loss of transformers'; any other as it is."""
    if loss is ForCausalLMLoss:
        return causal_loss
    return masked_loss if loss is ForMaskedLMLoss else loss
