"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.activations import ACTIVATIONS
from fusedops.gradients.composite import second_derivative
from fusedops.gradients.products import affine
from fusedops.gradients.registry import Tensor, gradient


@gradient("grouped_matmul_backward", saves=("dy", "x", "offsets"))
def _grouped_matmul_backward(f: Any, c: Any, gdweights: Tensor) -> Mapping[str, Any]:
    """The gradient of dweights, which is linear in dy and x and does not depend on the values of the weights."""
    transpose = c.transpose_weights
    return {
        "dy": lambda: f.grouped_matmul(c.x, gdweights, c.offsets, transpose_weights=transpose),
        "x": lambda: f.grouped_matmul(c.dy, gdweights, c.offsets, transpose_weights=not transpose),
    }


def _experts(f: Any, c: Any, x: Tensor, weight: Tensor, **of: Tensor | None) -> Tensor:
    """All E experts of all N tokens, each times its weight, which is 0 for an expert that a token does not have."""

    def biases(name: str) -> Tensor | None:
        bias = of[name]
        return None if bias is None else f.transpose_last(f.expand_last(bias))  # [E, 1, out]

    z = affine(f, c, f.repeat_rows(f.rows(x), of["gate_up"]), of["gate_up"], biases("gate_up_bias"))
    gate, up = f.alternating(z) if c.interleaved else f.halves(z)
    if c.limit:
        gate, up = f.clamp(gate, -float("inf"), c.limit), f.clamp(up, -c.limit, c.limit)
    h = ACTIVATIONS[c.activation](f, c.alpha * gate) / c.alpha * (up + c.shift)
    results = affine(f, c, h, of["down"], biases("down_bias"))
    by_token = f.transpose_last(f.exchange_heads(results))  # [N, out, E]
    slots = f.where(f.one_hot(f.rows(c.index), by_token), f.expand_last(f.rows(weight)))  # [N, K, E]
    y = f.first(f.product(by_token, f.sum_last(f.transpose_last(slots))))
    return f.rows_as(y, c.index)


@gradient("experts_backward", saves=("dy", "x", "index", "weight", "gate_up", "down", "gate_up_bias", "down_bias"))
def _experts_backward(f: Any, c: Any, *upstream: Any) -> Mapping[str, Any]:
    names = ("x", "weight", "gate_up", "down", "gate_up_bias", "down_bias")
    return second_derivative(f, c, _experts, **dict(zip(names, upstream, strict=True)))
