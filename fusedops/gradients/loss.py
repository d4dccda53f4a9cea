"""Losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.composite import second_derivative
from fusedops.gradients.products import affine
from fusedops.gradients.registry import Tensor, gradient


@gradient("cross_entropy_backward", saves=("dloss", "logits", "labels"))
def _cross_entropy_backward(f: Any, c: Any, gdlogits: Tensor) -> Mapping[str, Any]:
    return second_derivative(f, c, _loss, dy=("dloss",), logits=gdlogits)


@gradient("linear_cross_entropy_backward", saves=("dloss", "x", "weight", "labels", "bias"))
def _linear_cross_entropy_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = affine(f, c, x, weight, bias)
        return _loss(f, c, c.softcap * f.tanh(logits / c.softcap) if c.softcap else logits)

    return second_derivative(f, c, plain, dy=("dloss",), x=gdx, weight=gdweight, bias=gdbias)


def _loss(f: Any, c: Any, logits: Tensor) -> Tensor:
    log_p = f.log_softmax(logits)
    of_label = f.sum_last(f.where(f.one_hot(c.labels, logits), log_p))
    loss = f.first((c.label_smoothing - 1.0) * of_label)
    if c.label_smoothing:
        loss = loss - c.label_smoothing * f.first(f.mean_last(log_p))
    counts = f.unequal(c.labels, c.ignore_index)
    loss = f.where(counts, loss)
    if c.reduction == "none":
        return loss
    total = f.sum(loss)
    return total if c.reduction == "sum" else total / f.sum(f.cast(counts, logits))
