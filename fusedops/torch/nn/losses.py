"""The cross-entropy loss, of logits or of the inputs of the linear layer that computes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

import fusedops.torch as fo
from fusedops.checks import not_finite_or_negative
from fusedops.functions.common import Reduction
from fusedops.torch.nn.layer import (
    FusedLayer,
    as_original,
    name,
    options,
    padded_by_compiler,
    unfused_input,
    widened,
)
from fusedops.torch.nn.linear import unfused_head, unfused_weight
from fusedops.torch.nn.plans import linear_loss


class CrossEntropyLoss(FusedLayer, nn.CrossEntropyLoss):
    """−log softmax(input)[target], reduced: `fusedops.torch.cross_entropy`.

    The other arguments are those of `torch.nn.CrossEntropyLoss`.

    Args:
        z_loss: z > 0 adds z · (log Σ exp(input))² to the loss of each row.

    Call arguments:
        input: logits [C], [N, C] or [N, C, d₁, ...], float64, float32, float16 or bfloat16.
        target: classes, [], [N] or [N, d₁, ...], int64 or int32.

    Returns:
        The loss. For 16-bit logits it is computed and returned in float32, which is more exact than torch's 16 bits;
        the gradient has the dtype of the logits.

    Raises:
        RuntimeError, ValueError, IndexError: as torch's layer does for a wrong shape, dtype or option; on a CPU also
            for a target that is neither in [0, C) nor `ignore_index`. On a GPU the loss and the gradient of such a
            target are NaN. So are those of rows with a negative class weight, whose loss torch's own code computes on a
            CPU.

    Logits with more than two dimensions are copied, unless the classes are contiguous in memory, as in
    `logits.transpose(1, 2)` of [N, T, C]. torch's own code computes probabilities as a target, weights of float64, and
    other dtypes, devices and layouts.

    Example:
        >>> fnn.CrossEntropyLoss()(torch.tensor([[2.0, 1.0], [0.0, 0.0]]), torch.tensor([0, -100]))
        tensor(0.3133)

    Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, for label smoothing.
    """

    reduction: Reduction
    own_options = ("z_loss",)
    z_loss: float = 0.0

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss = z_loss

    def why_not(self, *inputs: Any) -> str | None:
        return self._unfused(*inputs) or (_padded(inputs[0]) if inputs else None)

    def _unfused(self, *inputs: Any) -> str | None:
        if reason := unfused_class_weight(self.weight):
            return reason
        if not inputs:
            return None
        return unfused_input(inputs[0]) or unfused_target(*inputs[1:])

    def extra_repr(self) -> str:
        return options(self, ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self._unfused(input, target):
            return self.otherwise(self._of_torch, input, target)
        if _padded(input):  # the result is the kernel's: the compiler computes the cast with the loss
            wide = widened(input)
            return _of_torch(self, wide, target.long(), None if self.weight is None else self.weight.to(wide.dtype))
        rest = (self.weight, self.ignore_index, self.label_smoothing, self.reduction, self.z_loss)
        try:
            return of_classes(input, target, *rest)
        except RuntimeError as error:
            return as_original(error, self._of_torch, input, target)

    def _of_torch(self, input: Tensor, target: Tensor) -> Tensor:
        return _of_torch(self, input, target, self.weight)


class LinearCrossEntropyLoss(FusedLayer, nn.Module):
    """−log softmax(input Wᵀ + bias)[target], reduced, without the logits: `fusedops.torch.linear_cross_entropy`.

    The arguments and the state dict are those of `torch.nn.LinearCrossEntropyLoss`, which torch has since 2.13, but for
    `softcap`; it has others, too. To share the weight with an embedding: `loss.linear.weight = embedding.weight`.

    Args:
        in_features: the size of the input's last dimension.
        num_classes: how many classes there are.
        bias: whether the logits have one.
        device, dtype: of the parameters.
        reduction, ignore_index, label_smoothing: as in `torch.nn.CrossEntropyLoss`.
        softcap: c > 0 replaces each logit z by c · tanh(z / c).
        weight: [num_classes]: weights of the classes, as in `torch.nn.CrossEntropyLoss`; float32, float16 or bfloat16.
        z_loss: z > 0 adds z · (log Σ exp(logits))² to the loss of each row.

    Parameters:
        linear.weight: [num_classes, in_features], initialized as in `torch.nn.Linear`.
        linear.bias: [num_classes], with `bias=True`.

    Call arguments:
        input: [..., in_features], float64, float32, float16 or bfloat16, of the parameters' dtype. Autocast is as in
            `Linear`.
        target: classes, [...], int64 or int32.

    Returns:
        The loss, in float32, or in float64 for float64.

    Raises:
        RuntimeError, ValueError: an argument has the wrong shape or dtype, or an option is wrong; on a CPU also for a
            target that is neither a class nor `ignore_index`. On a GPU the loss of such a target is NaN, and so is the
            gradient of all weights.

    Gradient:
        The one of a weight with a `main_grad` is added to it, as in `Linear`, rounded to the product's dtype first.

    torch's own code computes the logits, and then their loss, of a `linear` that was replaced or has a hook, of weights
    that are quantized, of probabilities as a target, and of other dtypes, devices and layouts.

    Example:
        >>> loss = fnn.LinearCrossEntropyLoss(1, 2)
        >>> _ = loss.linear.weight.data.copy_(torch.tensor([[1.0], [0.5]]))
        >>> loss(torch.tensor([[2.0], [0.0]]), torch.tensor([0, -100])).detach()
        tensor(0.3133)
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        softcap: float = 0.0,
        weight: Tensor | None = None,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes, bias, device, dtype)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.softcap = softcap
        self.weight: Tensor | None
        self.register_buffer("weight", weight)
        self.z_loss = z_loss

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    def why_not(self, *inputs: Any) -> str | None:
        if inputs and (reason := unfused_input(inputs[0]) or unfused_target(*inputs[1:])):
            return reason
        if reason := unfused_head(self.linear):
            return f"linear {reason}"
        reason = unfused_class_weight(self.weight)
        return reason or (unfused_weight(inputs[0], self.linear.weight) if inputs else None)

    def extra_repr(self) -> str:
        return options(self, reduction="mean", ignore_index=-100, label_smoothing=0.0, softcap=0.0, z_loss=0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.why_not(input, target):
            return self.otherwise(self._of_logits, input, target)
        return linear_loss(
            self.linear,
            input,
            target,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
            softcap=self.softcap,
            class_weight=None if self.weight is None else self.weight.float(),
            z_loss=self.z_loss,
        )

    def _of_logits(self, input: Tensor, target: Tensor) -> Tensor:
        logits = self.linear(input)
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        rows = logits.reshape(-1, logits.shape[-1])
        labels = target.reshape(rows.shape if target.is_floating_point() else -1)
        weight = None if self.weight is None else self.weight.to(rows.dtype)
        loss = _of_torch(self, rows, labels, weight)
        return loss.reshape(logits.shape[:-1]) if self.reduction == "none" else loss


def _of_torch(
    layer: CrossEntropyLoss | LinearCrossEntropyLoss, logits: Tensor, target: Tensor, weight: Tensor | None
) -> Tensor:
    """torch's own loss with the layer's options, and its z-loss.

    The classes are the second dimension, or the only one.
    """
    loss = nn.functional.cross_entropy(
        logits,
        target,
        weight,
        ignore_index=layer.ignore_index,
        label_smoothing=layer.label_smoothing,
        reduction=layer.reduction,
    )
    if layer.z_loss == 0:
        return loss
    if problem := not_finite_or_negative("z_loss", layer.z_loss):
        operator = "cross_entropy" if isinstance(layer, CrossEntropyLoss) else "linear_cross_entropy"
        raise RuntimeError(f"fusedops.{operator}: {problem}")
    losses = layer.z_loss * logits.logsumexp(min(logits.dim() - 1, 1)).square()
    weights = torch.ones_like(losses)
    if not target.is_floating_point():
        counts = target != layer.ignore_index
        losses = torch.where(counts, losses, 0.0)
        weights = torch.where(counts, weights if weight is None else weight[target.where(counts, 0).long()], 0.0)
    if layer.reduction != "none":
        losses = losses.sum() / (weights.sum() if layer.reduction == "mean" else 1)
    return loss + losses


def of_classes(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: Reduction,
    z_loss: float = 0.0,
) -> Tensor:
    """The loss of logits whose classes are the second dimension, or the only one, as torch has them."""
    logits = input.movedim(1, -1) if isinstance(input, Tensor) and input.dim() > 2 else input
    return fo.cross_entropy(
        logits,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        class_weight=None if weight is None else weight.float(),
        z_loss=z_loss,
    )


def _padded(logits: Any) -> str | None:
    return padded_by_compiler(logits, min(logits.dim() - 1, 1)) if isinstance(logits, Tensor) else None


def unfused_class_weight(weight: Tensor | None) -> str | None:
    """The reason why the kernel, which reads weights of classes in float32, does not take them; None if it does."""
    if weight is None or weight.dtype in (torch.float32, torch.float16, torch.bfloat16):
        return None
    return f"weight is {name(weight.dtype)}"


def unfused_target(target: Any = None) -> str | None:
    if not isinstance(target, Tensor) or target.dtype in (torch.int64, torch.int32):
        return None
    return "the target holds probabilities" if target.is_floating_point() else f"the target is {name(target.dtype)}"
