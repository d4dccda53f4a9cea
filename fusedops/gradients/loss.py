"""Losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.composite import second_derivative
from fusedops.gradients.products import affine
from fusedops.gradients.registry import Tensor, gradient


@gradient("cross_entropy_backward", saves=("dloss", "logits", "labels", "count", "class_weight"))
def _cross_entropy_backward(f: Any, c: Any, gdlogits: Tensor) -> Mapping[str, Any]:
    return second_derivative(f, c, _loss, dy=("dloss",), logits=gdlogits)


@gradient("linear_cross_entropy_backward", saves=("dloss", "x", "weight", "labels", "bias", "count", "class_weight"))
def _linear_cross_entropy_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _loss(f, c, _logits(f, c, x, weight, bias))

    return second_derivative(f, c, plain, dy=("dloss",), x=gdx, weight=gdweight, bias=gdbias)


@gradient("linear_log_prob_backward", saves=("dlog_prob", "x", "weight", "labels", "bias", "dlse", "dentropy"))
def _linear_log_prob_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        logits = _logits(f, c, x, weight, bias) / c.temperature
        log_p = f.log_softmax(logits)
        counts = f.unequal(c.labels, c.ignore_index)
        of_label = f.first(f.sum_last(f.where(f.one_hot(c.labels, logits), log_p)))
        results = (f.where(counts, of_label), f.log_sum_exp(logits, ()))
        if not c.need_entropy:
            return results
        entropy = -f.first(f.sum_last(f.multiply(f.probabilities(logits, ()), log_p)))
        return (*results, f.where(counts, entropy))

    dy = ("dlog_prob", "dlse", *(("dentropy",) if c.need_entropy else ()))
    return second_derivative(f, c, plain, dy=dy, x=gdx, weight=gdweight, bias=gdbias)


@gradient(
    "linear_kl_div_backward",
    saves=("dloss", "x", "weight", "target_x", "target_weight", "bias", "target_bias", "labels", "count"),
)
def _linear_kl_div_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        given = (c.target_x, c.target_weight, c.target_bias)
        target_x, target_weight, target_bias = (y if y is None else f.compute(y) for y in given)
        logits = (affine(f, c, x, weight, bias), affine(f, c, target_x, target_weight, target_bias))
        log_p, log_q = (f.log_softmax(z / c.temperature) for z in logits)
        p, q = (f.probabilities(z / c.temperature, ()) for z in logits)
        if c.beta == 0.0:
            terms = q * (log_q - log_p)
        elif c.beta == 1.0:
            terms = p * (log_p - log_q)
        else:
            least = 2.0**-126  # the logarithm of 0 is infinite, and so is its slope
            log_m = f.log(c.beta * q + (1.0 - c.beta) * p + least)
            terms = c.beta * q * (log_q - log_m) + (1.0 - c.beta) * p * (log_p - log_m)
        return _reduced(f, c, f.first(f.sum_last(terms)))

    return second_derivative(f, c, plain, dy=("dloss",), x=gdx, weight=gdweight, bias=gdbias)


def _logits(f: Any, c: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = affine(f, c, x, weight, bias)
    return c.softcap * f.tanh(logits / c.softcap) if c.softcap else logits


def _loss(f: Any, c: Any, logits: Tensor) -> Tensor:
    log_p, is_label = f.log_softmax(logits), f.one_hot(c.labels, logits)
    weights = None if c.class_weight is None else f.cast(c.class_weight, logits)
    weighted = log_p if weights is None else log_p * weights
    loss = f.first((c.label_smoothing - 1.0) * f.sum_last(f.where(is_label, weighted)))
    if c.label_smoothing:
        loss = loss - c.label_smoothing * f.first(f.mean_last(weighted))
    if c.z_loss:
        lse = f.log_sum_exp(logits, ())
        loss = loss + c.z_loss * lse * lse
    return _reduced(f, c, loss)


def _reduced(f: Any, c: Any, losses: Tensor) -> Tensor:
    """The losses of rows that are not ignored, or their sum or mean."""
    losses = losses if c.labels is None else f.where(f.unequal(c.labels, c.ignore_index), losses)
    if c.reduction == "none":
        return losses
    total = f.sum(losses)
    return total if c.reduction == "sum" else total / c.count
