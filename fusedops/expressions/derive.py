"""The derivative of a graph, in reverse mode.

The adjoint of a uniform node is per element of the row, as if each element had a copy of the node. It is summed only
where a single number per row is needed, which is where a reduction ends, and over the simplest terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fusedops.expressions.expand import gelu_tanh_argument, gelu_tanh_argument_slope
from fusedops.expressions.graph import COMPARISONS, Graph, Node, needed
from fusedops.expressions.terms import Term, divided, guarded, product, row, total

_CONSTANT = (*COMPARISONS, "floor", "sign")  # their slope is zero, where it is defined

Rule = Callable[[Graph, Node, Term], tuple[Term | None, ...]]


def vjp(graph: Graph, results: Sequence[Node], upstream: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """The gradients of Σ results · upstream with respect to the inputs."""
    nodes = needed(results)
    graph.given = len(graph.nodes)
    moving = _depending(nodes, inputs)
    adjoints: dict[Node, Term] = {}

    def add(node: Node, term: Term) -> None:
        if node in moving:
            adjoints[node] = total(graph, adjoints[node], term) if node in adjoints else term

    for result, adjoint in zip(results, upstream, strict=True):
        add(result, Term(1.0, adjoint))
    for node in reversed(nodes):
        if node.op == "input" or node not in adjoints or not adjoints[node].scale:
            continue
        parts: dict[Node, Term] = {}  # terms of one operand are summed first: x * x has 2 * x
        for operand, term in zip(node.operands, RULES[node.op](graph, node, adjoints[node]), strict=True):
            if term:
                parts[operand] = total(graph, parts[operand], term) if operand in parts else term
        for operand, term in parts.items():
            add(operand, term)
    return [adjoints[node].value(graph) if node in adjoints else graph.constant(0) for node in inputs]


def _depending(nodes: Sequence[Node], inputs: Sequence[Node]) -> set[Node]:
    moving = set(inputs)
    for node in nodes:
        if node.op in _CONSTANT:
            continue
        if any(operand in moving for operand in node.operands[node.op == "where" :]):
            moving.add(node)
    return moving


def _mul(g: Graph, y: Node, v: Term) -> tuple[Term, ...]:
    a, b = y.operands
    return product(g, v, b), product(g, v, a)


def _div(g: Graph, y: Node, v: Term) -> tuple[Term, ...]:
    by_a = divided(g, v, y.operands[1])
    return by_a, -product(g, by_a, y)


def _pow(g: Graph, y: Node, v: Term) -> tuple[Term | None, ...]:
    a, b = y.operands
    one, zero = g.constant(1), g.constant(0)
    by_a = product(g, product(g, v, b), g.apply("pow", a, g.apply("sub", b, one)))
    if b.op == "constant":
        return by_a, None
    by_a = guarded(g, by_a, g.apply("ne", b, zero))
    by_b = product(g, product(g, v, y), g.apply("log", a))
    if a.op == "constant" and a.value:
        return by_a, by_b
    flat = g.apply("mul", g.apply("eq", a, zero), g.apply("ge", b, zero))  # 0 ** b is constant around b
    return by_a, guarded(g, by_b, flat, holds=False)


def _where(g: Graph, y: Node, v: Term) -> tuple[Term | None, ...]:
    condition = y.operands[0]
    return None, guarded(g, v, condition), guarded(g, v, condition, holds=False)


def _largest(g: Graph, y: Node, v: Term) -> tuple[Term, ...]:
    """The gradient of max and min: shared equally at ties; both get all of it if one operand is NaN."""
    a, b = y.operands
    half = g.apply("mul", g.constant(0.5), v.node)
    shared = replace(v, node=g.apply("where", g.apply("eq", a, b), half, v.node))
    less, more = g.apply("lt", a, b), g.apply("lt", b, a)
    not_a, not_b = (less, more) if y.op == "max" else (more, less)
    return guarded(g, shared, not_a, holds=False), guarded(g, shared, not_b, holds=False)


def _row_largest(g: Graph, y: Node, v: Term) -> tuple[Term, ...]:
    """The gradient is shared by all elements equal to the maximum or minimum. A NaN result gives NaN to the row."""
    (a,) = y.operands
    ties = g.apply("row_sum", g.apply("eq", a, y))
    count = g.apply("where", g.apply("eq", y, y), ties, g.constant(math.nan))
    share = divided(g, row(g, "row_sum", v), count)
    beyond = g.apply("lt", a, y) if y.op == "row_max" else g.apply("lt", y, a)
    return (guarded(g, share, beyond, holds=False),)


def _erf(g: Graph, y: Node, v: Term) -> tuple[Term, ...]:
    (a,) = y.operands
    slope = g.apply("exp", g.apply("neg", g.apply("mul", a, a)))
    return (product(g, v, slope) * (2 / math.sqrt(math.pi)),)


def _sigmoid_slope(g: Graph, a: Node) -> Node:
    """sigmoid(a) · sigmoid(-a); s - s² would be zero for large a."""
    return g.apply("mul", g.apply("sigmoid", a), g.apply("sigmoid", g.apply("neg", a)))


def _gelu_tanh(g: Graph, y: Node, v: Term) -> tuple[Term, ...]:
    (x,) = y.operands
    z = gelu_tanh_argument(g, x)
    bend = g.apply("mul", g.apply("mul", x, _sigmoid_slope(g, z)), gelu_tanh_argument_slope(g, x))
    return (product(g, v, g.apply("add", g.apply("sigmoid", z), bend)),)


RULES: dict[str, Rule] = {
    "neg": lambda g, y, v: (-v,),
    "add": lambda g, y, v: (v, v),
    "sub": lambda g, y, v: (v, -v),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "where": _where,
    "min": _largest,
    "max": _largest,
    "exp": lambda g, y, v: (product(g, v, y),),
    "log": lambda g, y, v: (divided(g, v, y.operands[0]),),
    "log1p": lambda g, y, v: (divided(g, v, g.apply("add", g.constant(1), y.operands[0])),),
    "expm1": lambda g, y, v: (product(g, v, g.apply("exp", y.operands[0])),),
    "sqrt": lambda g, y, v: (divided(g, v, y) * 0.5,),
    "rsqrt": lambda g, y, v: (product(g, v, g.apply("mul", g.apply("mul", y, y), y)) * -0.5,),
    "sin": lambda g, y, v: (product(g, v, g.apply("cos", y.operands[0])),),
    "cos": lambda g, y, v: (-product(g, v, g.apply("sin", y.operands[0])),),
    "tanh": lambda g, y, v: (product(g, v, _sigmoid_slope(g, g.apply("mul", g.constant(2), y.operands[0]))) * 4,),
    "sigmoid": lambda g, y, v: (product(g, v, _sigmoid_slope(g, y.operands[0])),),
    "erf": _erf,
    "cdf": lambda g, y, v: (product(g, v, g.apply("pdf", y.operands[0])),),
    "pdf": lambda g, y, v: (-product(g, product(g, v, y.operands[0]), y),),
    "abs": lambda g, y, v: (product(g, v, g.apply("sign", y.operands[0])),),
    "softplus": lambda g, y, v: (product(g, v, g.apply("sigmoid", y.operands[0])),),
    "gelu_tanh": _gelu_tanh,
    "row_sum": lambda g, y, v: (row(g, "row_sum", v),),
    "row_mean": lambda g, y, v: (row(g, "row_mean", v),),
    "row_max": _row_largest,
    "row_min": _row_largest,
}
