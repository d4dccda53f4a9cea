"""Experts of a mixture, 8 for each token, and their products alone, of 64 groups on a GPU.

The shape is tokens, F, features; for products the rows of all groups, features out, features in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.operators.record import Function, Input, Layout, Operator, Shape

PER_TOKEN = 8


def _experts(case: Any) -> int:
    """Few on a CPU: the plain formula computes all of them for every token."""
    return 64 if case.device == "cuda" else 8


def _tokens(case: Any) -> Layout:
    m, _, k = case.shape
    return Layout((m, k), 0)


def _slots(case: Any) -> Layout:
    return Layout((case.shape[0], PER_TOKEN), 0)


def _gate_up(case: Any) -> Layout:
    _, n, k = case.shape
    return Layout((_experts(case), 2 * n, k), None)


def _down(case: Any) -> Layout:
    _, n, k = case.shape
    return Layout((_experts(case), k, n), None)


def _weights(shape: Shape) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32) * shape[-1] ** -0.5


def _formula(n: Any) -> Function:
    """Every token goes through every expert, as in Keras's mixtures. Shapes do not depend on values."""

    def experts(x: Any, index: Any, weight: Any, gate_up: Any, down: Any) -> Any:
        total, size = 0.0, down.shape[-1]
        for expert in range(down.shape[0]):
            z = n.matmul(x, gate_up[expert])
            gate, up = z[..., :size], z[..., size:]
            share = n.mean(weight * n.like(index == expert, weight)) * PER_TOKEN
            total = total + share * n.matmul(gate * n.sigmoid(gate) * up, down[expert])
        return total

    return experts


def _torch(torch: Any) -> Function:
    """transformers' grouped_mm implementation."""
    own = torch.nn.functional

    def experts(x: Any, index: Any, weight: Any, gate_up: Any, down: Any) -> Any:
        of_slot = index.flatten()
        order = of_slot.argsort()
        counts = torch.zeros(len(down), dtype=torch.int32, device=x.device)
        offsets = counts.index_add(0, of_slot, torch.ones_like(of_slot, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
        gate, up = own.grouped_mm(x[order // PER_TOKEN], gate_up.mT, offs=offsets).chunk(2, -1)
        y = own.grouped_mm(own.silu(gate) * up, down.mT, offs=offsets) * weight.flatten()[order, None]
        return y[order.argsort()].view(*index.shape, -1).sum(1).to(x.dtype)

    return experts


def _products(values: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Products of the same size with one expert's matrices."""
    x, gate_up, down = values["x"], values["gate_up"][0], values["down"][0]
    rows = x.repeat(PER_TOKEN, 1)
    hidden = rows.new_ones(len(rows), down.shape[-1])
    return [(rows, gate_up), (hidden, down)]


def _matrices(case: Any) -> Layout:
    _, n, k = case.shape
    return Layout((_experts(case), n, k), None)


def _offsets(case: Any) -> np.ndarray:
    """Groups of equal size, if the rows allow it."""
    return np.linspace(0, case.shape[0], _experts(case) + 1).astype(np.int32)


def _groups(case: Any) -> np.ndarray:
    """The group of each row."""
    return np.repeat(np.arange(_experts(case), dtype=np.int32), np.diff(_offsets(case)))


def _grouped(n: Any) -> Function:
    """The product of every row with every matrix. The reference computes it for samples of the rows."""

    def grouped(x: Any, weights: Any, offsets: Any, group: Any) -> Any:
        total = 0.0
        for matrix in range(weights.shape[0]):
            total = total + n.like(group == matrix, x)[:, None] * n.matmul(x, weights[matrix])
        return total

    return grouped


def _torch_grouped(torch: Any) -> Function:
    def grouped(x: Any, weights: Any, offsets: Any, group: Any) -> Any:
        return torch.nn.functional.grouped_mm(x, weights.mT, offs=offsets[1:])

    return grouped


OPERATORS = (
    Operator(
        "grouped_matmul",
        inputs=(
            Input("x", _tokens),
            Input("weights", _matrices, values=_weights),
            Input("offsets", lambda case: Layout((_experts(case) + 1,), None), gradient=False, integers=_offsets),
            Input("group", lambda case: Layout(case.shape[:1], 0), gradient=False, integers=_groups),
        ),
        outputs={"out": lambda case: Layout(case.shape[:2], 0)},
        formula=_grouped,
        torch=_torch_grouped,
        adapted=lambda function: lambda x, weights, offsets, group: function(x, weights, offsets),
        products=lambda values: [(values["x"], values["weights"][0])],
    ),
    Operator(
        "experts",
        inputs=(
            Input("x", _tokens),
            Input("index", _slots, gradient=False, classes=_experts),
            Input("weight", _slots),
            Input("gate_up", _gate_up, values=_weights),
            Input("down", _down, values=_weights),
        ),
        outputs={"out": _tokens},
        formula=_formula,
        torch=_torch,
        products=_products,
        floors=(1.12, 1.12),
    ),
)
