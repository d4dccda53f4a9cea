"""matmul: a case's shape is M, N, K, and its work is arithmetic."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.record import Input, Layout, Operator


def _a(case: Any) -> Layout:
    m, _, k = case.shape
    return Layout((k, m), 1) if case.transposes[0] else Layout((m, k), 0)


def _b(case: Any) -> Layout:
    _, n, k = case.shape
    return Layout((n, k) if case.transposes[1] else (k, n), None)


def _c(case: Any) -> Layout:
    m, n, _ = case.shape
    return Layout((m, n), 0)


OPERATORS = (
    Operator(
        "matmul",
        inputs=(Input("a", _a), Input("b", _b)),
        outputs={"out": _c},
        options=lambda case: dict(zip(("transpose_a", "transpose_b"), case.transposes, strict=True)),
        formula=lambda n: n.matmul,  # of the transposes of the case
    ),
)
