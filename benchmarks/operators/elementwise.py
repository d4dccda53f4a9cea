"""Elementwise operators."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.record import Input, Operator, scalar

NUMBER = 1.7
ALL: dict[str, Any] = {"elementwise": True, "smallest": (16,)}

OPERATORS = (
    Operator(
        "axpby",
        # The gradient of b is the upstream gradient.
        inputs=(Input("a", scalar, values=NUMBER), Input("x"), Input("b", gradient=False)),
        moves=(3, 3),
        operations=(2, 3),
        formula=lambda n: lambda a, x, b: a * x + b,
        expression="a * x + b",
        registered=lambda a, x, b: (a, x, b, 0.0),  # a as a tensor and as a number, only one of which is used
        **ALL,
    ),
    Operator(
        "add",
        inputs=(Input("x"), Input("y")),
        moves=(3, 0),
        operations=(1, 0),
        formula=lambda n: lambda x, y: x + y,
        expression="x + y",
        sums=True,
        **ALL,
    ),
    Operator(
        "scale",
        inputs=(Input("x"), Input("factor", None, gradient=False, values=NUMBER)),
        moves=(2, 2),
        operations=(1, 1),
        formula=lambda n: lambda x, factor: x * factor,
        expression="x * factor",
        registered=lambda x, factor: (x, None, factor),
        **ALL,
    ),
    Operator(
        "relu",
        inputs=(Input("x"),),
        moves=(2, 3),
        operations=(1, 1),
        formula=lambda n: n.relu,
        expression="relu(x)",
        **ALL,
    ),
    Operator(
        "polynomial_activation",
        inputs=(Input("x"),),
        moves=(2, 3),
        operations=(4, 3),
        formula=lambda n: lambda x: x * x + x + 1,
        expression="x * x + x + 1",
        registered=lambda x: (x, [1.0, 1.0, 1.0]),
        **ALL,
    ),
)
