"""dropout_add, and add_rms_norm with dropout. Seeds come from the framework's generator, as in its own dropout."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.normalization import OF_SUM, WEIGHT, of_sum, plain_rms_norm
from benchmarks.operators.record import Function, Input, Operator

RATE = 0.1


def _dropout_add(n: Any) -> Function:
    return lambda x, residual: residual + n.dropout(x, RATE)


def _dropout_add_rms_norm(n: Any) -> Function:
    add_norm = of_sum(plain_rms_norm(n))
    return lambda x, residual, weight: add_norm(n.dropout(x, RATE), residual, weight)


OPERATORS = (
    Operator(
        "dropout_add",
        # The gradient of the residual is the upstream gradient.
        inputs=(Input("x"), Input("residual", gradient=False)),
        options=lambda case: {"rate": RATE},
        moves=(3, 2),
        operations=(4, 3),  # the random number, a comparison, a product and the sum
        formula=_dropout_add,
        random=True,
        floors=(1.05, 1.1),
    ),
    Operator(
        "dropout_add_rms_norm",
        function="add_rms_norm",
        inputs=(Input("x"), Input("residual"), WEIGHT),
        options=lambda case: {"dropout": RATE},
        operations=(8, 13),
        formula=_dropout_add_rms_norm,
        random=True,
        floors=(1.09, 0.0),
        # The gradients of both summands are two tensors.
        **{**OF_SUM, "moves": (4, 5), "sums": False},
    ),
)
