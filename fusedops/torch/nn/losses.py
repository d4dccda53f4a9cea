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

    Arguments are those of `torch.nn.CrossEntropyLoss`.

    Call arguments:
        input: logits [C], [N, C] or [N, C, d₁, ...], float64, float32, float16 or bfloat16.
        target: classes, [], [N] or [N, d₁, ...], int64 or int32. On a CPU, one that is neither in [0, C) nor
            `ignore_index` is an error; on a GPU its loss and gradient are NaN.

    The loss of 16-bit logits is float32, and computed in it: more exact than torch's, which rounds it to 16 bits. Their
    gradient has their dtype. Logits with more than two dimensions are copied, unless the classes lie side by side in
    memory, as in `logits.transpose(1, 2)` of [N, T, C].

    torch's own code computes class weights, probabilities as a target, and other dtypes, devices and layouts.

    Raises:
        RuntimeError, ValueError, IndexError: as torch's layer does, where a shape, a dtype or an option is not as
            above, or, on a CPU, a target: IndexError.

    Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, for label smoothing.
    """

    reduction: Reduction

    def why_not(self, *inputs: Any) -> str | None:
        if self.weight is not None:
            return "weight is set"
        return unfused_input(inputs[0]) or _unfused_target(*inputs[1:]) if inputs else None

    def extra_repr(self) -> str:
        return options(self, ignore_index=-100, reduction="mean", label_smoothing=0.0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if self.why_not(input, target):
            return super().forward(input, target)
        logits = input.movedim(1, -1) if isinstance(input, Tensor) and input.dim() > 2 else input
        try:
            return fo.cross_entropy(
                logits,
                target,
                ignore_index=self.ignore_index,
                label_smoothing=self.label_smoothing,
                reduction=self.reduction,
            )
        except RuntimeError as error:
            return as_original(error, super().forward, input, target)


def _unfused_target(target: Any = None) -> str | None:
    if not isinstance(target, Tensor) or target.dtype in (torch.int64, torch.int32):
        return None
    return "the target holds probabilities" if target.is_floating_point() else f"the target is {name(target.dtype)}"
