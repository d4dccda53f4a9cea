"""Attention by its plain formula in any floating type, with its rounding errors, for one sequence or many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.helpers.specification import Array, any_order

FEW = 16  # product, exponentials and quotient: roundings that are the unit of errors with their own magnitude


def positions(columns: int) -> tuple[int, int]:
    """Splits a row of `columns` elements into positions and features."""
    features = min(max(columns, 1), 8)
    return -(-columns // features), features


def beside(queries: int, keys: int, query_offset: Array | int | None = None) -> Array:
    """The key on the diagonal of each query, [..., 1, T, 1]."""
    first = keys - queries if query_offset is None else query_offset
    return np.arange(queries)[:, None] + np.asarray(first)[..., None, None, None]


def seen(diagonal: Array, keys: int, causal: bool = False, window: int | None = None) -> Array:
    """The keys that a query sees by position, as booleans [..., 1, T, S]."""
    columns = np.arange(keys)
    visible = np.ones((*diagonal.shape[:-1], keys), bool)
    if causal:
        visible &= columns <= diagonal
    if window is not None:
        visible &= columns > diagonal - window
    return visible


def linear_bias(alibi: Array, diagonal: Array, keys: int) -> Array:
    """The term that ALiBi adds to each score, [..., H, T, S]."""
    return -alibi[:, None, None] * np.abs(diagonal - np.arange(keys)).astype(alibi.dtype)


def summed_to(shape: tuple[int, ...], x: Array) -> Array:
    """The sum of x over the dimensions along which a tensor of this shape is broadcast to it."""
    missing = x.ndim - len(shape)
    along = tuple(i for i, size in enumerate((*[1] * missing, *shape)) if size == 1)
    return x.sum(along, keepdims=True).reshape(shape)


class ReturningLse:
    """A specification whose function returns lse as well."""

    function_options: Mapping[str, Any] = {"return_lse": True}
    outputs = ("y", "lse")
    compute_dtype_outputs = ("lse",)


def folded(x: Array, times: int, key_heads: int) -> Array:
    """The sum over the heads [..., H, S, D] that share a key head."""
    *leading, _, positions, features = x.shape
    if times == 0:  # no heads share them
        return np.zeros((*leading, key_heads, positions, features), x.dtype)
    return x.reshape(*leading, key_heads, times, positions, features).sum(-3)


class Plain:
    """Arguments: q [..., H, T, D], k [..., Hk, S, D] and v [..., Hk, S, Dv]; `visible` broadcasts to [..., H, T, S].
    `factors`: the dropout factors [..., H, T, S]. `sinks`: [H]. `bias` and `slopes`, the term of ALiBi, are added to
    the scores; only the bias has a gradient."""

    def __init__(
        self,
        q: Array,
        k: Array,
        v: Array,
        visible: Array,
        scale: float | None,
        softcap: float,
        factors: Array | float = 1.0,
        slopes: Array | None = None,
        sinks: Array | None = None,
        bias: Array | None = None,
    ) -> None:
        self.factors, self.sinks, self.bias = factors, sinks, bias
        dtype, self.key_heads = q.dtype.type, k.shape[-3]
        self.times = q.shape[-3] // max(k.shape[-3], 1)
        self.q, self.k, self.v = q, *(np.repeat(x, self.times, -3) for x in (k, v))
        self.scale = dtype(1) / np.sqrt(dtype(q.shape[-1])) if scale is None else dtype(scale)
        visible = np.broadcast_to(visible, (*q.shape[:-1], k.shape[-2]))
        with np.errstate(all="ignore"):
            scores = self.scale * (self.q @ np.swapaxes(self.k, -1, -2))
            # Errors of each exponent, in roundings: of its products and their sum, then of the operations on it.
            products = np.abs(self.scale) * (np.abs(self.q) @ np.swapaxes(np.abs(self.k), -1, -2))
            errors = any_order(q.shape[-1]) * products
            self.slope = np.ones_like(scores)
            if softcap:
                t = np.tanh(scores / dtype(softcap))
                scores, self.slope = dtype(softcap) * t, 1 - t * t
                errors = self.slope * errors + 10 * np.abs(scores)
            for term in (slopes, bias):
                if term is not None:
                    scores = scores + term
                    errors = errors + 4 * np.abs(term) + np.abs(scores)
            if bias is not None:
                visible = visible & (bias != -np.inf)
            self.visible = visible
            scores = np.where(visible, scores, -np.inf).astype(dtype)
            largest = scores.max(-1, keepdims=True, initial=-np.inf)
            sink = None if sinks is None else sinks[:, None, None]
            largest = largest if sink is None else np.maximum(largest, sink)
            exponentials = np.where(visible, np.exp(scores - largest), 0)
            total = exponentials.sum(-1, keepdims=True)
            of_sink = 0 if sink is None else np.exp(sink - largest)
            total = total + of_sink
            self.p_sink = of_sink / total
            self.p = np.where(visible, exponentials / total, 0).astype(dtype)
            log_sum = np.where(largest == -np.inf, largest, largest + np.log(total))
            # Numbers below the smallest normal number may be flushed to zero.
            tiny = np.finfo(np.float32)
            self.size = np.where(visible, self.p + tiny.smallest_normal / tiny.eps, 0)
            below = finite(largest - scores)
            errors = np.where(visible, finite(errors) + 4 * below, 0)
            self.log_sum = np.squeeze(log_sum, -1)
            self.errors_of_log = np.sum(self.p * errors, -1, keepdims=True)
            if sink is not None:
                self.errors_of_log += self.p_sink * 4 * finite(largest - sink)
            self.errors = errors + self.errors_of_log
            # Beside the errors of the scores: the roundings of the sum, of its logarithm, and of the maximum.
            self.errors_of_log += FEW * (1 + np.abs(finite(largest)) + np.abs(finite(log_sum)))
            # The backward takes the exponentials of scores - log_sum.
            self.errors_again = (
                self.errors + 2 * np.where(visible, np.abs(finite(scores)), 0) + 2 * np.abs(finite(log_sum))
            )
            if sink is not None:
                self.errors_of_sink = self.errors_of_log + 2 * np.abs(finite(sink)) + 2 * np.abs(finite(log_sum))

    def value(self) -> Array:
        with np.errstate(all="ignore"):
            return (self.p * self.factors) @ self.v

    def magnitude(self) -> Array:
        with np.errstate(all="ignore"):
            size = self.size * (1 + self.errors / FEW) + self._tiny()
            return (size * self.factors) @ np.abs(self.v)

    def log_magnitude(self) -> Array:
        return np.squeeze(self.errors_of_log, -1) / FEW

    def _tiny(self) -> Array:
        """Errors are absolute below the smallest normal float16 number, in which a GPU stores p. They appear if dropout
        leaves only small probabilities in a row."""
        return np.where(self.size > 0, np.finfo(np.float16).smallest_normal, 0)

    def gradients(self, dy: Array, dlse: Array | float = 0.0) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            dp = (dy @ np.swapaxes(self.v, -1, -2)) * self.factors
            delta = np.sum(dy * self.value(), -1, keepdims=True) - column(dlse)
            ds = np.where(self.visible, self.p * (dp - delta), 0)
            products = self._products(self.scale, ds * self.slope, self.p * self.factors, self.q, self.k, dy)
            return products | self._of_terms(ds, -self.p_sink * delta)

    def gradient_magnitude(self, dy: Array, dlse: Array | float = 0.0) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            dy, size = np.abs(dy), self.size * (1 + self.errors_again / FEW)
            dp = (dy @ np.swapaxes(np.abs(self.v), -1, -2)) * self.factors
            tiny = self._tiny()  # of ds as well
            delta = np.sum(dy * self.magnitude(), -1, keepdims=True) + column(np.abs(dlse))
            ds = size * (dp + delta) + tiny
            products = self._products(
                np.abs(self.scale), ds, (size + tiny) * self.factors, *map(np.abs, (self.q, self.k)), dy
            )
            of_sinks = 0 if self.sinks is None else self.p_sink * (1 + self.errors_of_sink / FEW) * delta
            return products | self._of_terms(ds, of_sinks)

    def _of_terms(self, ds: Array, of_rows: Array) -> dict[str, Array]:
        """The gradients of the sinks and of the bias that are given, from those of rows and of scores."""
        sinks = {} if self.sinks is None else {"sinks": self._of_sinks(of_rows)}
        return sinks if self.bias is None else {**sinks, "bias": summed_to(self.bias.shape, ds)}

    def _of_sinks(self, of_rows: Array) -> Array:
        """The sums of [..., H, T, 1] over the rows of each head."""
        heads = of_rows.shape[-3]
        return np.moveaxis(of_rows, -3, 0).reshape(heads, -1).sum(-1)

    def _products(self, scale: Array, ds: Array, p: Array, q: Array, k: Array, dy: Array) -> dict[str, Array]:
        of_keys = {"k": scale * (np.swapaxes(ds, -1, -2) @ q), "v": np.swapaxes(p, -1, -2) @ dy}
        shared = {name: folded(x, self.times, self.key_heads) for name, x in of_keys.items()}
        return {"q": scale * (ds @ k), **shared}


def column(x: Array | float) -> Array:
    """One number for each query, as a column beside its row of keys."""
    return np.asarray(x)[..., None]


def finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0)


def roundings(
    queries: int, keys: int, times: int, features: int, rows: int, sharing_scores: int = 1
) -> dict[str, float]:
    """Roundings of the output and the gradients; `times`: the number of query heads per key head, `rows`: that of all
    queries of a head, `sharing_scores`: the scores that share an element of the bias. Scores are summed over features,
    outputs over keys, gradients of keys over the queries that see them, gradients of sinks over all rows."""
    y = FEW + any_order(keys)
    ds = y + any_order(features)
    of_keys = any_order(queries * max(times, 1))
    of_sinks = ds + any_order(rows)
    return {
        "y": y,
        "lse": y,
        "dq": ds + any_order(keys),
        "dk": ds + of_keys,
        "dv": y + of_keys,
        "dsinks": of_sinks,
        "dbias": ds + any_order(sharing_scores),
    }


# A GPU multiplies probabilities and their gradients as 16-bit numbers, and the backward reads the rounded y.
STORAGE = {"y": 1, "dq": 2, "dk": 2, "dv": 1, "dsinks": 2, "dbias": 2}
