"""The loss of a language model, without a copy of the logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

import fusedops.torch as fo
from fusedops.conversion import UnknownClass
from fusedops.functions.common import Reduction
from fusedops.torch.conversion.hf.code import with_global
from fusedops.torch.conversion.hf.internals import ForCausalLMLoss, ForMaskedLMLoss, PreTrainedModel, can_return_tuple
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.nn import CrossEntropyLoss
from fusedops.torch.nn.layer import as_original, padded_by_compiler, unfused_input

_LOSS = "CrossEntropyLoss"


class LanguageModel(HFLayer):
    """A model whose `loss_function` is ours instead of transformers'; another loss that the user has set stays."""

    needs = ("loss_function",)

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        theirs = kind.loss_function  # type: ignore[attr-defined]

        def ours(self: Any) -> Callable[..., torch.Tensor]:
            return _fused(theirs.fget(self))

        return {"loss_function": property(ours, theirs.fset, theirs.fdel, theirs.__doc__)}

    def unfused(self) -> str | None:
        loss = self.original.loss_function.fget(self)  # type: ignore[attr-defined]
        if _fused(loss) is not loss:
            return None
        return f"its loss_function is {getattr(loss, '__name__', type(loss).__name__)}"


class HeadWithLoss(HFLayer):
    """A model whose `forward` makes a torch.nn.CrossEntropyLoss: the same code with our class under that name."""

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        unknown = unknown_head(kind)
        if unknown:
            raise UnknownClass(unknown)
        plain = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
        return {"forward": can_return_tuple(with_global(plain, _LOSS, CrossEntropyLoss))}

    def unfused(self) -> str | None:
        return unknown_head(self.original)


def is_language_model(kind: type) -> bool:
    """True if the class's forward calls the `loss_function` that it inherits from PreTrainedModel."""
    theirs = inspect.getattr_static(kind, "loss_function", None)
    forward = inspect.unwrap(vars(kind)["forward"])
    is_theirs = isinstance(theirs, property) and theirs is vars(PreTrainedModel)["loss_function"]
    return is_theirs and isinstance(forward, FunctionType) and "loss_function" in forward.__code__.co_names


def unknown_head(kind: type) -> str | None:
    """The reason not to replace the loss in the forward of this class, or None."""
    try:
        plain = undecorated(kind)
    except UnknownClass as error:
        return str(error)
    if _LOSS not in plain.__code__.co_names or plain.__globals__.get(_LOSS) is not torch.nn.CrossEntropyLoss:
        return f"its forward makes no {_LOSS}"
    return None


def undecorated(kind: type) -> FunctionType:
    """The forward of this class without `can_return_tuple`.

    Raises:
        UnknownClass: it has another decorator, or none.
    """
    forward = kind.forward  # type: ignore[attr-defined]
    plain = getattr(forward, "__wrapped__", None)
    is_known = isinstance(plain, FunctionType) and not hasattr(plain, "__wrapped__")
    if plain is None or not is_known or forward.__code__ is not can_return_tuple(plain).__code__:
        raise UnknownClass("its forward is decorated in another way than is known")
    return plain


def causal_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """transformers' ForCausalLMLoss: each position's logits predict the next label."""
    labels = shifted(labels, ignore_index) if shift_labels is None else shift_labels
    return masked_loss(logits, labels, vocab_size, num_items_in_batch, ignore_index)


def shifted(labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """The next label of each position."""
    return torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)


def masked_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> torch.Tensor:
    """transformers' ForMaskedLMLoss, without a copy of the logits in float32, in which the kernel computes.

    transformers rounds float64 logits to float32. The kernel rounds only the loss.
    """
    if unfused_input(logits) or padded_by_compiler(logits):
        return ForMaskedLMLoss(logits, labels, vocab_size, num_items_in_batch, ignore_index, **kwargs)
    rows, labels = logits.reshape(-1, vocab_size), labels.reshape(-1).to(logits.device)
    try:
        return averaged(
            lambda reduction: fo.cross_entropy(rows, labels, ignore_index=ignore_index, reduction=reduction),
            num_items_in_batch,
        )
    except RuntimeError as error:
        return as_original(error, ForMaskedLMLoss, logits, labels, vocab_size, num_items_in_batch, ignore_index)


def averaged(loss: Callable[[Reduction], torch.Tensor], count: torch.Tensor | int | None) -> torch.Tensor:
    """The sum of a loss divided by the number of items in all batches of a step; without a number, the mean."""
    if count is None:
        return loss("mean").float()
    total = loss("sum").float()
    return total / (count.to(total.device) if isinstance(count, torch.Tensor) else count)


def _fused(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Our equivalent of a loss of transformers; any other loss unchanged."""
    if loss is ForCausalLMLoss:
        return causal_loss
    return masked_loss if loss is ForMaskedLMLoss else loss
