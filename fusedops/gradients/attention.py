"""Softmax and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.composite import derivative, second_derivative
from fusedops.gradients.registry import Tensor, gradient

_UPSTREAM = ("dy", "dlse")


@gradient("softmax_backward", saves=("dy", "y"))
def _softmax_backward(f: Any, c: Any, gdx: Tensor) -> Mapping[str, Any]:
    def plain(dy: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (c.scale * y * (dy - f.sum_last(dy * y)),)

    return derivative(f, c, plain, ("dy", "y"), (gdx,))


@gradient("softmax_bias_backward", saves=("dy", "y"))
def _softmax_bias_backward(f: Any, c: Any, gdbias: Tensor) -> Mapping[str, Any]:
    def plain(dy: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (y * (dy - f.sum_last(dy * y)),)

    return derivative(f, c, plain, ("dy", "y"), (f.broadcast(gdbias, c.y),))


_SAVED = ("dy", "q", "k", "v", "dlse", "alibi", "sinks")


@gradient("attention_backward", saves=(*_SAVED, "bias", "mask", "lengths", "seed", "query_offset"))
def _attention_backward(
    f: Any,
    c: Any,
    gdq: Tensor | None,
    gdk: Tensor | None,
    gdv: Tensor | None,
    gdsinks: Tensor | None,
    gdbias: Tensor | None,
) -> Mapping[str, Any]:
    return second_derivative(f, c, _attention, _UPSTREAM, q=gdq, k=gdk, v=gdv, sinks=gdsinks, bias=gdbias)


@gradient("attention_varlen_backward", saves=(*_SAVED, "offsets_q", "offsets_k"))
def _attention_varlen_backward(
    f: Any, c: Any, gdq: Tensor | None, gdk: Tensor | None, gdv: Tensor | None, gdsinks: Tensor | None
) -> Mapping[str, Any]:
    return second_derivative(f, c, _attention_varlen, _UPSTREAM, q=gdq, k=gdk, v=gdv, sinks=gdsinks)


def _attention(
    f: Any, c: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    heads_first = c.seq_dim == -2
    if not heads_first:
        q, k, v = map(f.exchange_heads, (q, k, v))
    scores = _scores(f, c, q, k)
    diagonal = f.diagonal(scores, c.query_offset)
    scores = _biased(f, c, scores, diagonal)
    masks = _band(c, f.columns(scores), diagonal)
    if c.lengths is not None:
        lengths = f.expand_last(f.expand_last(f.expand_last(f.cast(c.lengths, f.columns(scores)))))
        masks.append(f.columns(scores) < lengths)
    if c.mask is not None:
        masks.append(c.mask)
    if bias is not None:
        scores = scores + bias
        masks.append(f.unequal(bias, float("-inf")))
    p, lse = _softmax(f, scores, masks, sinks)
    if c.seed is not None:
        p = f.dropout(p, c.seed, rate=c.dropout)
    y = _weighted_values(f, p, v)
    return y if heads_first else f.exchange_heads(y), lse


def _attention_varlen(f: Any, c: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    q, k, v = map(f.exchange_heads, (q, k, v))
    scores = _scores(f, c, q, k)
    query_segment, key_segment, diagonal = f.packed(scores, c.offsets_q, c.offsets_k)
    scores = _biased(f, c, scores, diagonal)
    p, lse = _softmax(f, scores, [query_segment == key_segment, *_band(c, f.columns(scores), diagonal)], sinks)
    return f.exchange_heads(_weighted_values(f, p, v)), lse


def _scores(f: Any, c: Any, q: Tensor, k: Tensor) -> Tensor:
    """[..., H, T, S] from q [..., H, T, D] and k [..., Hk, S, D]."""
    scale = c.scale[0] if len(c.scale) else f.features(q) ** -0.5
    scores = f.product(q, f.transpose_last(f.repeat_heads(k, q))) * scale
    return c.softcap * f.tanh(scores / c.softcap) if c.softcap else scores


def _biased(f: Any, c: Any, scores: Tensor, diagonal: Tensor) -> Tensor:
    if c.alibi is None:
        return scores
    slopes = f.expand_last(f.expand_last(f.cast(c.alibi, scores)))
    return scores - slopes * f.cast(f.absolute(f.columns(scores) - diagonal), scores)


def _softmax(f: Any, scores: Tensor, masks: list[Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """The probabilities and the log-sum-exp. The sinks are one more visible column."""
    if sinks is None:
        return f.probabilities(scores, masks), f.log_sum_exp(scores, masks)
    scores, masks = f.beside_sinks(scores, masks, sinks)
    return f.but_last(f.probabilities(scores, masks)), f.log_sum_exp(scores, masks)


def _band(c: Any, columns: Tensor, diagonal: Tensor) -> list[Tensor]:
    """The masks of causality and of the window. `diagonal` is each query's key on the diagonal."""
    masks = [columns <= diagonal] if c.causal else []
    return [*masks, columns > diagonal - c.window] if c.window else masks


def _weighted_values(f: Any, p: Tensor, v: Tensor) -> Tensor:
    return f.product(p, f.repeat_heads(v, p))
