"""bias_act and swiglu."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.record import Function, Input, Operator, of_a_row


def gelu_tanh(n: Any, h: Any) -> Any:
    return 0.5 * h * (1 + n.tanh(0.7978845608028654 * (h + 0.044715 * h * h * h)))


def bias_act(n: Any) -> Function:
    def formula(x: Any, bias: Any) -> Any:
        return n.like(gelu_tanh(n, n.upcast(x) + n.upcast(bias)), x)

    return formula


def swiglu(n: Any) -> Function:
    def formula(gate: Any, up: Any) -> Any:
        h = n.upcast(gate)
        return n.like(h * n.sigmoid(h) * n.upcast(up), gate)

    return formula


def _torch_bias_act(torch: Any) -> Function:
    gelu = torch.nn.functional.gelu
    return lambda x, bias: gelu(x + bias, approximate="tanh")


def _torch_swiglu(torch: Any) -> Function:
    silu = torch.nn.functional.silu
    return lambda gate, up: silu(gate) * up


OPERATORS = (
    Operator(
        "bias_act",
        inputs=(Input("x"), Input("bias", of_a_row, parameter=True)),
        options=lambda case: {"activation": "gelu_tanh"},
        moves=(2, 3),
        operations=(10, 18),
        formula=bias_act,
        expression="gelu_tanh(x + bias)",
        torch=_torch_bias_act,
        floors=(1.05, 0.0),
        tf_calls=True,
    ),
    Operator(
        "swiglu",
        inputs=(Input("gate"), Input("up")),
        moves=(3, 5),
        operations=(3, 9),
        formula=swiglu,
        expression="silu(gate) * up",
        torch=_torch_swiglu,
        liger=lambda ops: ops.LigerSiLUMulFunction.apply,
        floors=(1.03, 1.03),
        tf_calls=True,
    ),
)
