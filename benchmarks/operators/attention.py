"""softmax."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.record import Function, Input, Operator


def _torch_softmax(torch: Any) -> Function:
    softmax = torch.nn.functional.softmax
    return lambda x: softmax(x, -1)


OPERATORS = (
    Operator(
        "softmax",
        inputs=(Input("x"),),
        moves=(2, 3),
        operations=(5, 4),
        formula=lambda n: n.softmax,
        expression="e = exp(x - max(x)); e / sum(e)",
        torch=_torch_softmax,
        liger=lambda ops: ops.LigerSoftmaxFunction.apply,
        quack=lambda quack: quack.softmax,
        floors=(1.06, 1.06),
        tf_calls=True,
    ),
)
