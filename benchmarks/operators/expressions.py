"""Expressions for which fusedops has no operator."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.activations import gelu_tanh
from benchmarks.operators.record import Function, Input, Operator, of_a_row


def _biased_gate(n: Any) -> Function:
    def biased_gate(x: Any, bias: Any, up: Any) -> Any:
        return n.like(gelu_tanh(n, n.upcast(x) + n.upcast(bias)) * n.upcast(up), x)

    return biased_gate


def _torch_biased_gate(torch: Any) -> Function:
    gelu = torch.nn.functional.gelu
    return lambda x, bias, up: gelu(x + bias, approximate="tanh") * up


OPERATORS = (
    Operator(
        "biased_gate",
        inputs=(Input("x"), Input("bias", of_a_row, parameter=True), Input("up")),
        moves=(3, 5),
        operations=(11, 20),
        formula=_biased_gate,
        expression="gelu_tanh(x + bias) * up",
        own=True,
        torch=_torch_biased_gate,
    ),
)
