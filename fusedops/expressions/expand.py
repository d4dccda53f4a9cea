"""Functions of an expression that are made of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusedops.expressions.graph import Graph, Node, copied

_K = 2 * math.sqrt(2 / math.pi)
_L = 0.044715 * _K


def relu(g: Graph, x: Node) -> Node:
    """NaN stays, and the slope at 0 is 0."""
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
    """Where the square is cut, the sigmoid has no slope left that it could change."""
    return _polynomial(g, x, 3 * _L)


def _polynomial(g: Graph, x: Node, factor: float) -> Node:
    square = g.apply("min", g.apply("mul", x, x), g.constant(1000))  # beyond it, a sigmoid is 0 or 1
    return g.apply("add", g.constant(_K), g.apply("mul", g.constant(factor), square))


def softplus(g: Graph, x: Node) -> Node:
    rest = g.apply("log1p", g.apply("exp", g.apply("neg", g.apply("abs", x))))
    return g.apply("add", g.apply("max", x, g.constant(0)), rest)


AT_ONCE: dict[str, Callable[[Graph, Node], Node]] = {"relu": relu, "gelu": gelu, "silu": silu}
# These have derivatives of their own, better than those of what they are made of.
LATE: dict[str, Callable[[Graph, Node], Node]] = {"gelu_tanh": gelu_tanh, "softplus": softplus}


def expanded(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The same values, of primitives alone, in a new graph."""
    other = Graph()
    for node in graph.inputs:
        other.input(node.uniform)
    return copied(other, nodes, _replace)


def _replace(graph: Graph, op: str, operand: Node) -> Node | None:
    return LATE[op](graph, operand) if op in LATE else None
