"""Simplifications that change at most the sign of a zero: x + 0, 1 * x, --x, x ** 2. 0 * x stays: it may be NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusedops.expressions.graph import Graph, Node


def simplified(graph: Graph, op: str, operands: tuple[Node, ...]) -> Node | None:
    """The node that can replace the operation, if any."""
    rule = _RULES.get(op)
    return rule(graph, *operands) if rule else None


def _is(node: Node, value: float) -> bool:
    return node.op == "constant" and node.value == value


def _add(g: Graph, a: Node, b: Node) -> Node | None:
    if _is(a, 0):
        return b
    if _is(b, 0):
        return a
    if b.op == "neg":
        return g.apply("sub", a, b.operands[0])
    if a.op == "neg":
        return g.apply("sub", b, a.operands[0])
    return None


def _sub(g: Graph, a: Node, b: Node) -> Node | None:
    if _is(b, 0):
        return a
    if _is(a, 0):
        return g.apply("neg", b)
    if b.op == "neg":
        return g.apply("add", a, b.operands[0])
    return None


def _mul(g: Graph, a: Node, b: Node) -> Node | None:
    for one, other in ((a, b), (b, a)):
        if _is(one, 1):
            return other
        if _is(one, -1):
            return g.apply("neg", other)
    return _without_signs(g, "mul", a, b)


def _div(g: Graph, a: Node, b: Node) -> Node | None:
    if _is(b, 1):
        return a
    if _is(b, -1):
        return g.apply("neg", a)
    return _without_signs(g, "div", a, b)


def _without_signs(g: Graph, op: str, a: Node, b: Node) -> Node | None:
    """Moves negations outward, where they may cancel."""
    if a.op == "neg":
        return g.apply("neg", g.apply(op, a.operands[0], b))
    if b.op == "neg":
        return g.apply("neg", g.apply(op, a, b.operands[0]))
    return None


def _pow(g: Graph, a: Node, b: Node) -> Node | None:
    if b.op != "constant":
        return None
    if b.value == 0:
        return g.constant(1)
    if b.value == 1:
        return a
    if b.value == 2:
        return g.apply("mul", a, a)
    if b.value == 3:
        return g.apply("mul", g.apply("mul", a, a), a)
    if b.value == 0.5:
        return g.apply("sqrt", a)
    if b.value == -0.5:
        return g.apply("rsqrt", a)
    if b.value == -1:
        return g.apply("div", g.constant(1), a)
    return None


def _where(g: Graph, c: Node, a: Node, b: Node) -> Node | None:
    if a is b:
        return a
    if c.op == "constant":
        return a if c.value else b  # NaN is not zero
    if c.op in ("eq", "ne"):
        for zero, condition in (c.operands, c.operands[::-1]):
            if _is(zero, 0):
                return g.apply("where", condition, *((a, b) if c.op == "ne" else (b, a)))
    return None


_RULES: dict[str, Callable[..., Node | None]] = {
    "neg": lambda g, a: a.operands[0] if a.op == "neg" else None,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "where": _where,
    "min": lambda g, a, b: a if a is b else None,
    "max": lambda g, a, b: a if a is b else None,
    # The sum of n equal means is n times the mean.
    "row_sum": lambda g, a: g.apply("row_sum", a.operands[0]) if a.op == "row_mean" else None,
}
