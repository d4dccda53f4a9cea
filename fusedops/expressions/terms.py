"""Terms of a derivative: a number times a node, so that signs and factors combine before they are computed.

The guard of a term is the condition of its branch. It is applied after the slopes are multiplied: a slope of a branch
that is not taken may be infinite or NaN, and zero times it would be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusedops.expressions.graph import COMPARISONS, Graph, Node

_MOST = 32  # factors of a product, or terms of a sum, that are examined one by one
_LARGEST = 2.0**127  # finite in every compute dtype


@dataclass(frozen=True, slots=True)
class Term:
    scale: float
    node: Node
    guard: Node | None = None  # 1 or 0; where it is 0, the term is 0
    masked: bool = False  # True if the node itself is 0 where the guard is 0

    def __mul__(self, factor: float) -> Term:
        return replace(self, scale=self.scale * factor)

    def __neg__(self) -> Term:
        return self * -1.0

    def value(self, graph: Graph) -> Node:
        if not self.scale:
            return graph.constant(0)
        return _within(graph, self, _scaled(graph, self))

    def mask(self, graph: Graph) -> Term:
        """The same term with a node that is 0 where the guard is 0."""
        return replace(self, node=_within(graph, self, self.node), masked=self.guard is not None)


def _within(graph: Graph, term: Term, node: Node) -> Node:
    """The node where the term's guard is 1, and 0 elsewhere."""
    pending = [] if term.guard is None or term.masked else [term.guard]
    while pending:
        guard = pending.pop()
        if guard.op == "mul":  # both factors are guards
            pending.extend(guard.operands)
        else:
            node = graph.apply("where", guard, node, graph.constant(0))
    return node


def guarded(graph: Graph, term: Term, condition: Node, holds: bool = True) -> Term:
    """The term where the condition holds, or where it does not; zero elsewhere."""
    if condition.op == "constant":
        return term if (condition.value != 0) == holds else Term(0.0, term.node)
    if not holds:
        guard = _negated(graph, condition)
    else:
        guard = condition if condition.op in COMPARISONS else _compared(graph, "ne", condition)
    if term.guard is guard:
        return term
    if term.guard is not None:
        guard = graph.apply("mul", term.guard, guard)
    return Term(term.scale, term.node, guard)


def _compared(graph: Graph, op: str, node: Node) -> Node:
    return graph.apply(op, node, graph.constant(0))


def _negated(graph: Graph, condition: Node) -> Node:
    if condition.op in ("eq", "ne"):
        return graph.apply("ne" if condition.op == "eq" else "eq", *condition.operands)
    return _compared(graph, "eq", condition)


def _any_of_row(graph: Graph, guard: Node | None) -> Node | None:
    """The guard of a reduction: 1 if the guard is 1 for any element of the row."""
    return guard if guard is None or guard.uniform else graph.apply("row_max", guard)


def _is_factor(node: Node) -> bool:
    """True for a constant that can be taken out of a guard: it is finite, so zero times it is zero."""
    return node.op == "constant" and abs(node.value) <= _LARGEST


def _plain(node: Node) -> Term:
    """The node without its sign and constant factor, which become the scale."""
    scale = 1.0
    while node.op == "neg" or (node.op == "mul" and any(map(_is_factor, node.operands))):
        if node.op == "neg":
            scale, node = -scale, node.operands[0]
        else:
            a, b = node.operands
            constant, node = (a, b) if _is_factor(a) else (b, a)
            scale *= constant.value
    return Term(scale, node)


def product(graph: Graph, term: Term, factor: Node) -> Term:
    if _is_factor(factor):
        return term * factor.value
    plain = _plain(factor)
    made = _plain(graph.apply("mul", term.node, plain.node))
    return Term(made.scale * (term.scale * plain.scale), made.node, term.guard)


def divided(graph: Graph, term: Term, divisor: Node) -> Term:
    scale = term.scale
    if divisor.op == "neg":
        scale, divisor = -scale, divisor.operands[0]
    made = _plain(graph.apply("div", term.node, divisor))
    return Term(made.scale * scale, made.node, term.guard)


def total(graph: Graph, a: Term, b: Term) -> Term:
    if not a.scale or not b.scale:
        return a if a.scale else b
    if a.guard is b.guard:
        return replace(_sum(graph, a, b), guard=a.guard, masked=a.masked and b.masked)
    if a.guard is None or b.guard is None:
        return _sum(graph, a.mask(graph), b.mask(graph))
    if _negated(graph, a.guard) is b.guard or _negated(graph, b.guard) is a.guard:
        return Term(1.0, graph.apply("where", a.guard, _scaled(graph, a), _scaled(graph, b)))
    either = graph.apply("max", a.guard, b.guard)
    return replace(_sum(graph, a.mask(graph), b.mask(graph)), guard=either, masked=True)


def _sum(graph: Graph, a: Term, b: Term) -> Term:
    """The sum of the terms without their guards."""
    if a.node is b.node:
        return Term(a.scale + b.scale, a.node)
    if a.scale == b.scale:
        return Term(a.scale, graph.apply("add", a.node, b.node))
    if a.scale == -b.scale:
        return Term(a.scale, graph.apply("sub", a.node, b.node))
    if b.scale < 0:
        return Term(1.0, graph.apply("sub", _scaled(graph, a), _scaled(graph, -b)))
    return Term(1.0, graph.apply("add", _scaled(graph, a), _scaled(graph, b)))


def _scaled(graph: Graph, term: Term) -> Node:
    """The term's value without its guard."""
    return graph.apply("mul", graph.constant(term.scale), term.node)


def row(graph: Graph, op: str, term: Term, splits: int = 4) -> Term:
    """The sum or mean of a term over the row, with uniform factors taken out.

    A sum is split into its terms if they depend on fewer reductions, since each level of reductions is a pass over the
    row. Sums that the user wrote, such as x - mean(x), are not split: their terms may be much larger than their
    difference. They are split if everything cancels, as in mean(x - mean(x)).

    The guard stays within the sum. The sum also has a guard: it is zero if no element's guard is 1.
    """
    term = _mask_as_guard(graph, term)
    whole = _row_of_product(graph, op, term, splits)
    added, addends = _addends(graph, term.node)
    if splits and len(addends) > 1:
        split = Term(0.0, term.node)
        depth = 0
        for addend in addends:
            opened = _mask_as_guard(graph, replace(term, scale=addend.scale, node=addend.node))
            part = _row_of_product(graph, op, opened, splits - 1)
            depth = max(depth, part.node.depth)
            split = total(graph, split, part)
        if term.masked:
            split = replace(split.mask(graph), guard=whole.guard, masked=True)
        if not split.scale or (depth < whole.node.depth and added.index >= graph.given):
            return split * term.scale
    return whole


def _mask_as_guard(graph: Graph, term: Term) -> Term:
    """The same term with a guard in place of a mask, which would keep uniform factors within a sum."""
    while term.node.op == "where" and term.node.index >= graph.given:
        condition, *branches = term.node.operands
        taken = [branch for branch in branches if not (branch.op == "constant" and branch.value == 0)]
        if len(taken) != 1:
            break
        plain = _plain(taken[0]) * term.scale
        bare = replace(plain, guard=None if term.masked else term.guard)
        term = guarded(graph, bare, condition, holds=taken[0] is branches[0])
    return term


def _row_of_product(graph: Graph, op: str, term: Term, splits: int) -> Term:
    scale, numerators, denominators = _factors(term.node)
    outside, inside = _split_uniform(numerators)
    divisors, inner_divisors = _split_uniform(denominators)
    guard = _any_of_row(graph, term.guard)
    if not inside and not inner_divisors and guard is term.guard:
        reduced = _row_of_uniform(graph, op, outside)
    elif not outside and not divisors:
        core = term.node if guard is term.guard else term.mask(graph).node
        return Term(term.scale, graph.apply(op, core), guard, term.masked or guard is not term.guard)
    else:
        core = inside[0] if inside else graph.constant(1)
        core = _quotient(graph, core, inside[1:], inner_divisors)
        plain = replace(_plain(core), guard=term.guard, masked=term.masked)
        reduced = row(graph, op, plain, splits - 1) if splits else _row_of_product(graph, op, plain, 0)
    node = _plain(_quotient(graph, reduced.node, outside, divisors))
    return Term(node.scale * (term.scale * scale * reduced.scale), node.node, guard, term.masked)


def _row_of_uniform(graph: Graph, op: str, factors: list[Node]) -> Term:
    """The reduction of ones: 1 for a mean, n for a sum. If a mean is among the factors, n times it is a sum."""
    if op == "row_mean":
        return Term(1.0, graph.constant(1))
    for i, factor in enumerate(factors):
        if factor.op == "row_mean":
            del factors[i]
            return Term(1.0, graph.apply("row_sum", factor.operands[0]))
    return Term(1.0, graph.apply("row_sum", graph.constant(1)))


def _quotient(graph: Graph, node: Node, factors: Sequence[Node], divisors: Sequence[Node]) -> Node:
    numerators, denominators = [node, *factors], list(divisors)
    for factor in numerators[:]:
        if factor in denominators:  # such as the sum of a softmax's exponentials
            numerators.remove(factor)
            denominators.remove(factor)
    node = numerators[0] if numerators else graph.constant(1)
    for factor in numerators[1:]:
        node = graph.apply("mul", node, factor)
    for divisor in denominators:
        node = graph.apply("div", node, divisor)
    return node


def _split_uniform(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    return [node for node in nodes if node.uniform], [node for node in nodes if not node.uniform]


def _factors(node: Node) -> tuple[float, list[Node], list[Node]]:
    """A product's constant, factors and divisors; the node as the only factor if there are too many."""
    scale, numerators, denominators, pending = 1.0, list[Node](), list[Node](), [node]
    while pending:
        if len(numerators) + len(denominators) + len(pending) > _MOST:
            return 1.0, [node], []
        factor = pending.pop()
        if factor.op == "neg":
            scale = -scale
            pending.append(factor.operands[0])
        elif factor.op == "mul":
            pending.extend(reversed(factor.operands))
        elif factor.op == "div":
            pending.append(factor.operands[0])
            denominators.append(factor.operands[1])
        elif _is_factor(factor):
            scale *= factor.value
        else:
            numerators.append(factor)
    return scale, numerators, denominators


def _addends(graph: Graph, node: Node) -> tuple[Node, list[Term]]:
    """A sum among the node's factors, and the terms of the expanded product; the node alone if they are too many."""
    scale, numerators, denominators = _factors(node)
    sums = [factor for factor in numerators if factor.op in ("add", "sub")]
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
    rest = [factor for factor in numerators if factor is not sums[0]]
    return sums[0], [_plain(_quotient(graph, addend.node, rest, denominators)) * addend.scale for addend in found]
