"""Functions of expressions that are composed of other operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusedops.expressions.graph import Graph, Node, copied

_K = 2 * math.sqrt(2 / math.pi)
_L = 0.044715 * _K


def relu(g: Graph, x: Node) -> Node:
    """NaN stays NaN. The slope at 0 is 0."""
    zero = g.constant(0)
    return g.apply("where", g.apply("le", x, zero), zero, x)


def gelu(g: Graph, x: Node) -> Node:
    return g.apply("mul", x, g.apply("cdf", x))


def silu(g: Graph, x: Node) -> Node:
    return g.apply("mul", x, g.apply("sigmoid", x))


def gelu_tanh(g: Graph, x: Node) -> Node:
    return g.apply("mul", x, g.apply("sigmoid", gelu_tanh_argument(g, x)))


def gelu_tanh_argument(g: Graph, x: Node) -> Node:
    return g.apply("mul", x, _polynomial(g, x, _L))


def gelu_tanh_argument_slope(g: Graph, x: Node) -> Node:
    """The clamp in `_polynomial` does not matter here: beyond it the sigmoid's slope is zero."""
    return _polynomial(g, x, 3 * _L)


def _polynomial(g: Graph, x: Node, factor: float) -> Node:
    square = g.apply("min", g.apply("mul", x, x), g.constant(1000))  # the sigmoid is 0 or 1 from there on
    return g.apply("add", g.constant(_K), g.apply("mul", g.constant(factor), square))


def softplus(g: Graph, x: Node) -> Node:
    rest = g.apply("log1p", g.apply("exp", g.apply("neg", g.apply("abs", x))))
    return g.apply("add", g.apply("max", x, g.constant(0)), rest)


EXPANDED_EARLY: dict[str, Callable[[Graph, Node], Node]] = {"relu": relu, "gelu": gelu, "silu": silu}
# Expanded after differentiation: their own derivatives are better than those of their expansions.
EXPANDED_LATE: dict[str, Callable[[Graph, Node], Node]] = {"gelu_tanh": gelu_tanh, "softplus": softplus}


def expanded(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The same values from primitive operations, in a new graph."""
    other = Graph()
    for node in graph.inputs:
        other.input(node.uniform)
    return copied(other, nodes, lambda g, op, operand: EXPANDED_LATE[op](g, operand) if op in EXPANDED_LATE else None)
