"""Terms of a derivative: a number times a node, so that signs and factors meet before they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusedops.expressions.graph import Graph, Node

_MOST = 32  # factors of a product, or terms of a sum, that are looked at one by one


@dataclass(frozen=True, slots=True)
class Term:
    scale: float
    node: Node

    def __mul__(self, factor: float) -> Term:
        return Term(self.scale * factor, self.node)

    def __neg__(self) -> Term:
        return self * -1.0

    def value(self, graph: Graph) -> Node:
        if not self.scale:
            return graph.constant(0)
        return graph.apply("mul", graph.constant(self.scale), self.node)


def _plain(node: Node) -> Term:
    """Without its sign and its constant factor."""
    scale = 1.0
    while node.op == "neg" or (node.op == "mul" and any(a.op == "constant" for a in node.operands)):
        if node.op == "neg":
            scale, node = -scale, node.operands[0]
        else:
            a, b = node.operands
            constant, node = (a, b) if a.op == "constant" else (b, a)
            scale *= constant.value
    return Term(scale, node)


def product(graph: Graph, term: Term, factor: Node) -> Term:
    if factor.op == "constant":
        return term * factor.value
    plain = _plain(factor)
    return _plain(graph.apply("mul", term.node, plain.node)) * (term.scale * plain.scale)


def divided(graph: Graph, term: Term, divisor: Node) -> Term:
    scale = term.scale
    if divisor.op == "neg":
        scale, divisor = -scale, divisor.operands[0]
    return _plain(graph.apply("div", term.node, divisor)) * scale


def total(graph: Graph, a: Term, b: Term) -> Term:
    if not a.scale or not b.scale:
        return a if a.scale else b
    if a.node is b.node:
        return Term(a.scale + b.scale, a.node)
    if a.scale == b.scale:
        return Term(a.scale, graph.apply("add", a.node, b.node))
    if a.scale == -b.scale:
        return Term(a.scale, graph.apply("sub", a.node, b.node))
    if b.scale < 0:
        return Term(1.0, graph.apply("sub", a.value(graph), (-b).value(graph)))
    return Term(1.0, graph.apply("add", a.value(graph), b.value(graph)))


def row(graph: Graph, op: str, term: Term, splits: int = 4) -> Term:
    """The sum or mean over the row. What is the same for the whole row is taken out of it.

    A sum is split if its terms need not wait for as many other reductions: each level of them is a pass over the row.
    But what its user wrote is not, as x - mean(x), whose terms may be much larger than their difference; unless nothing
    is left, as of mean(x - mean(x)).
    """
    whole = _row_of_product(graph, op, term, splits)
    added, addends = _addends(graph, term.node)
    if splits and len(addends) > 1:
        split = Term(0.0, term.node)
        depth = 0
        for addend in addends:
            part = _row_of_product(graph, op, addend, splits - 1)
            depth = max(depth, part.node.depth)
            split = total(graph, split, part)
        if not split.scale or (depth < whole.node.depth and added.index >= graph.given):
            return split * term.scale
    return whole


def _row_of_product(graph: Graph, op: str, term: Term, splits: int) -> Term:
    scale, above, below = _factors(term.node)
    outside, inside = _parted(above)
    divisors, inner_divisors = _parted(below)
    if not outside and not divisors:
        return Term(term.scale, graph.apply(op, term.node))
    if inside or inner_divisors:
        core = inside[0] if inside else graph.constant(1)
        core = _quotient(graph, core, inside[1:], inner_divisors)
        reduced = row(graph, op, _plain(core), splits - 1) if splits else Term(1.0, graph.apply(op, core))
    else:
        reduced = _row_of_uniform(graph, op, outside)
    node = _quotient(graph, reduced.node, outside, divisors)
    return _plain(node) * (term.scale * scale * reduced.scale)


def _row_of_uniform(graph: Graph, op: str, factors: list[Node]) -> Term:
    """Of one for each element; but a mean among the factors becomes a sum."""
    if op == "row_sum":
        for i, factor in enumerate(factors):
            if factor.op == "row_mean":
                del factors[i]
                return Term(1.0, graph.apply("row_sum", factor.operands[0]))
    return Term(1.0, graph.apply(op, graph.constant(1)))


def _quotient(graph: Graph, node: Node, factors: Sequence[Node], divisors: Sequence[Node]) -> Node:
    above, below = [node, *factors], list(divisors)
    for factor in above[:]:
        if factor in below:  # as the sum of a softmax's exponentials
            above.remove(factor)
            below.remove(factor)
    node = above[0] if above else graph.constant(1)
    for factor in above[1:]:
        node = graph.apply("mul", node, factor)
    for divisor in below:
        node = graph.apply("div", node, divisor)
    return node


def _parted(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    return [node for node in nodes if node.uniform], [node for node in nodes if not node.uniform]


def _factors(node: Node) -> tuple[float, list[Node], list[Node]]:
    """A product's constant, factors and divisors; the node as a factor of its own if there are too many."""
    scale, above, below, pending = 1.0, list[Node](), list[Node](), [node]
    while pending:
        if len(above) + len(below) + len(pending) > _MOST:
            return 1.0, [node], []
        factor = pending.pop()
        if factor.op == "neg":
            scale = -scale
            pending.append(factor.operands[0])
        elif factor.op == "mul":
            pending.extend(reversed(factor.operands))
        elif factor.op == "div":
            pending.append(factor.operands[0])
            below.append(factor.operands[1])
        elif factor.op == "constant":
            scale *= factor.value
        else:
            above.append(factor)
    return scale, above, below


def _addends(graph: Graph, node: Node) -> tuple[Node, list[Term]]:
    """A sum that is a factor of the node, and the terms of their product; the node alone if they are too many."""
    scale, above, below = _factors(node)
    sums = [factor for factor in above if factor.op in ("add", "sub")]
    if len(sums) != 1:
        return node, [Term(1.0, node)]
    found, pending = list[Term](), [Term(scale, sums[0])]
    while pending:
        if len(found) + len(pending) > _MOST:
            return node, [Term(1.0, node)]
        term = pending.pop()
        plain = _plain(term.node) * term.scale
        if plain.node.op in ("add", "sub") and (plain.node.index >= graph.given or plain.node is sums[0]):
            a, b = plain.node.operands
            pending.append(Term(-plain.scale if plain.node.op == "sub" else plain.scale, b))
            pending.append(Term(plain.scale, a))
        else:
            found.append(plain)
    rest = [factor for factor in above if factor is not sums[0]]
    return sums[0], [_plain(_quotient(graph, addend.node, rest, below)) * addend.scale for addend in found]
