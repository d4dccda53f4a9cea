"""Formulas that join the results of a call's parts, where neither concatenation nor a sum does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fusedops.axes import Division
from fusedops.torch.library import Signature


@dataclass(frozen=True)
class Join:
    """Functions that make the results of a call from those of its parts.

    Both functions get the arguments of a part, by name, and its outputs. `statistics` also gets `size`, the number of
    the part's elements along the divided axis. `results` gets the statistics of all parts, along a first dimension.
    """

    attributes: Mapping[str, Any]  # of all parts, in place of those of the call
    statistics: Callable[..., Tensor]
    results: Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Part:
    """A part of a call along an axis whose parts have a place."""

    signature: Signature
    inputs: Sequence[Any]  # the part's inputs, and the attributes of the call
    division: Division
    offset: int
    size: int

    @property
    def join(self) -> Join | None:
        return JOINS.get(self.signature.declaration.name)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments with which the operator computes the part."""
        common = self.join.attributes if self.join else {}
        return self.signature.replaced(self.inputs, {**self.division.attributes_at(self.offset), **common})

    def statistics(self, outputs: Sequence[Tensor]) -> Tensor:
        assert self.join is not None
        return self.join.statistics(self._named(self.arguments, size=self.size), *outputs)

    def results(self, statistics: Tensor, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        assert self.join is not None
        return self.join.results(self._named(self.inputs), statistics, *outputs)

    def _named(self, arguments: Sequence[Any], **others: Any) -> SimpleNamespace:
        names = [x.name for x in self.signature.declaration.inputs]
        inputs = dict(zip(names, self.signature.padded(arguments), strict=True))
        return SimpleNamespace(**inputs, **self.signature.named_attributes(arguments), **others)


def _loss_statistics(part: SimpleNamespace, loss: Tensor, lse: Tensor, *_: Tensor) -> Tensor:
    """The numbers of `_statistics` for a loss. With the target distribution q over the part's classes, w is its sum,
    and the loss is w · lse - Σ q x."""
    has_label = _has_label(part).to(loss.dtype)
    if part.class_weight is None:
        share = part.size / max(part.classes, 1)
    else:
        has_label = has_label * _label_weight(part, loss)
        own = part.class_weight[part.first_class : part.first_class + part.size]
        share = own.to(loss.dtype).sum() / max(part.classes, 1)
    return _statistics(loss, lse, (1 - part.label_smoothing) * has_label + part.label_smoothing * share)


def _log_prob_statistics(part: SimpleNamespace, log_prob: Tensor, _: Tensor, entropy: Tensor, lse: Tensor) -> Tensor:
    """The numbers of `_statistics` for the loss -log_prob, and the entropy of the part's classes if it is needed."""
    more = [entropy] if part.need_entropy else []
    return _statistics(-log_prob, lse, _has_label(part).to(log_prob.dtype), *more)


def _has_label(part: SimpleNamespace) -> Tensor:
    label = part.labels - part.first_class
    return (label >= 0) & (label < part.size)


def _statistics(loss: Tensor, lse: Tensor, weight: Tensor, *more: Tensor) -> Tensor:
    """Numbers for each row: the part's loss, the two numbers of its log-sum-exp, w, and others."""
    maximum, log_sum = lse.unbind(-1)[:2]
    infinite = torch.where(weight > 0, torch.inf, 0.0)  # the term where all of the part's logits are -inf
    term = torch.where(maximum + log_sum == -torch.inf, infinite, loss)
    return torch.stack([term, maximum, log_sum, weight, *more], -1)


def _joined(statistics: Tensor) -> tuple[Tensor, ...]:
    """The loss of each row, Σ (loss of the part) + Σ w · (lse - lse of the part) over all parts; Σ w; the two numbers
    of the log-sum-exp; and the logarithms of the parts' probabilities."""
    terms, maxima, log_sums, weights = statistics.unbind(-1)[:4]
    maximum = maxima.amax(0)
    below = torch.where(maxima == maximum, 0.0, maxima - maximum)
    log_sum = (log_sums + below).logsumexp(0)
    more = torch.where(weights == 0, 0.0, weights * (log_sum - log_sums - below))
    return (terms + more).sum(0), weights.sum(0), maximum, log_sum, log_sums + below - log_sum


def _losses(
    call: SimpleNamespace, statistics: Tensor, loss: Tensor, lse: Tensor, count: Tensor, *unit: Tensor
) -> tuple[Tensor, ...]:
    """The losses of all classes, with the z-loss. `unit`: the gradients that a forward keeps, which are empty in
    parts."""
    rows, scale, maximum, log_sum, _ = _joined(statistics)
    if call.z_loss:
        total = maximum + log_sum
        rows, scale = rows + call.z_loss * total * total, scale + 2 * call.z_loss * total
    rows, scale = (torch.where(call.labels == call.ignore_index, 0.0, x) for x in (rows, scale))
    reduced = rows if call.reduction == "none" else rows.sum()
    if call.reduction == "mean":
        reduced = reduced / count
    return (reduced, torch.stack([maximum, log_sum, scale], -1), count, *unit)


def _log_probs(
    call: SimpleNamespace, statistics: Tensor, log_prob: Tensor, lse: Tensor, entropy: Tensor, own: Tensor
) -> tuple[Tensor, ...]:
    """The entropy is Σ s · (entropy of the part - log s), for the parts' probabilities s."""
    loss, _weight, maximum, log_sum, log_share = _joined(statistics)
    if call.need_entropy:
        share = log_share.exp()
        entropy = torch.where(share == 0, 0.0, share * (statistics[..., 4] - log_share)).sum(0)
    is_ignored = call.labels == call.ignore_index
    log_prob, entropy = (torch.where(is_ignored, 0.0, x) for x in (-loss, entropy))
    return log_prob, maximum + log_sum, entropy, torch.stack([maximum, log_sum, torch.zeros_like(log_sum)], -1)


def _label_weight(part: SimpleNamespace, like: Tensor) -> Tensor:
    """The weight of each label; 0 for a label that is no class."""
    is_class = (part.labels >= 0) & (part.labels < part.classes)
    weights = part.class_weight.to(like.dtype)[torch.where(is_class, part.labels, 0).long()]
    return torch.where(is_class, weights, 0.0)


_LOSS = Join({"reduction": "none", "z_loss": 0.0}, _loss_statistics, _losses)
JOINS: Mapping[str, Join] = {
    "cross_entropy": _LOSS,
    "linear_cross_entropy": _LOSS,
    "linear_log_prob": Join({}, _log_prob_statistics, _log_probs),
}
