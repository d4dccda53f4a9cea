"""The cross-entropy loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fusedops.torch as fo
from fusedops.functions.common import Reduction
from fusedops.torch.nn.layer import FusedLayer, as_original, name, options, unfused_input


class CrossEntropyLoss(FusedLayer, nn.CrossEntropyLoss):
    """−log softmax(input)[target], reduced: `fusedops.torch.cross_entropy`.

    The arguments are those of `torch.nn.CrossEntropyLoss`.

    Call arguments:
        input: logits [C], [N, C] or [N, C, d₁, ...], float64, float32, float16 or bfloat16.
        target: classes, [], [N] or [N, d₁, ...], int64 or int32.

    Returns:
        The loss. For 16-bit logits it is computed and returned in float32, which is more exact than torch's 16 bits;
        the gradient has the dtype of the logits.

    Raises:
        RuntimeError, ValueError, IndexError: as torch's layer does for a wrong shape, dtype or option; on a CPU also
            for a target that is neither in [0, C) nor `ignore_index`. On a GPU the loss and the gradient of such a
            target are NaN.

    Logits with more than two dimensions are copied, unless the classes are contiguous in memory, as in
    `logits.transpose(1, 2)` of [N, T, C]. torch's own code computes class weights, probabilities as a target, and other
    dtypes, devices and layouts.

    Example:
        >>> fnn.CrossEntropyLoss()(torch.tensor([[2.0, 1.0], [0.0, 0.0]]), torch.tensor([0, -100]))
        tensor(0.3133)

    Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, for label smoothing.
    """

    reduction: Reduction

    def why_not(self, *inputs: Any) -> str | None:
        if self.weight is not None:
            return "weight is set"
        return unfused_input(inputs[0]) or unfused_target(*inputs[1:]) if inputs else None

    def extra_repr(self) -> str:
        return options(self, ignore_index=-100, reduction="mean", label_smoothing=0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.why_not(input, target):
            return self.otherwise(super().forward, input, target)
        try:
            return of_classes(input, target, self.ignore_index, self.label_smoothing, self.reduction)
        except RuntimeError as error:
            return as_original(error, super().forward, input, target)


def of_classes(
    input: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: Reduction
) -> Tensor:
    """The loss of logits whose classes are the second dimension, or the only one, as torch has them."""
    logits = input.movedim(1, -1) if isinstance(input, Tensor) and input.dim() > 2 else input
    return fo.cross_entropy(
        logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )


def unfused_target(target: Any = None) -> str | None:
    if not isinstance(target, Tensor) or target.dtype in (torch.int64, torch.int32):
        return None
    return "the target holds probabilities" if target.is_floating_point() else f"the target is {name(target.dtype)}"
