"""The graph of an expression: immutable nodes, one for each distinct value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusedops.expressions import folding, simplify

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
ELEMENTWISE = (
    *("neg", "add", "sub", "mul", "div", "pow"),
    *COMPARISONS,
    *("where", "min", "max", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tanh"),
    *("sigmoid", "erf", "cdf", "pdf", "abs", "floor", "sign"),
)
ROWS = ("row_sum", "row_mean", "row_max", "row_min")  # reductions of the last dimension, which keeps size 1
FUSED = ("fma", "fms", "fnma")  # a * b + c, a * b - c and c - a * b, rounded once
OPERATIONS = ("input", "constant", "reduced", *ELEMENTWISE, *FUSED)  # in the order of program::Op in the core

_SYMMETRIC = {"add", "mul", "min", "max", "eq", "ne"}


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    index: int  # larger than those of the operands
    op: str  # "input", "constant", or the operation on the operands
    operands: tuple[Node, ...]
    value: float  # of a constant
    place: int  # of an input
    uniform: bool  # the same for all elements of a row
    depth: int  # the length of the longest chain of row reductions up to here


class Graph:
    """Makes nodes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self.given = 0  # the number of nodes before the derivative's
        self._known: dict[tuple[object, ...], Node] = {}

    def input(self, uniform: bool = False) -> Node:
        node = self._add("input", (), place=len(self.inputs), uniform=uniform)
        self.inputs.append(node)
        return node

    def constant(self, value: float) -> Node:
        key = ("constant", float(value).hex())  # distinguishes -0.0 from 0.0, and identifies NaNs
        if key not in self._known:
            self._known[key] = self._add("constant", (), value=float(value), uniform=True)
        return self._known[key]

    def apply(self, op: str, *operands: Node) -> Node:
        """The node of the simplified value."""
        if all(operand.op == "constant" for operand in operands):
            value = folding.fold(op, *(operand.value for operand in operands))
            if value is not None:
                return self.constant(value)
        row = op in ROWS
        uniform = row or all(operand.uniform for operand in operands)
        depth = max(operand.depth for operand in operands) + row
        simple = simplify.simplified(self, op, operands)
        if simple and _extent(simple.uniform, simple.depth) == _extent(uniform, depth):
            return simple
        places = [operand.index for operand in operands]
        key = (op, *(sorted(places) if op in _SYMMETRIC else places))
        if key not in self._known:
            self._known[key] = self._add(op, operands, uniform=uniform, depth=depth)
        return self._known[key]

    def _add(
        self,
        op: str,
        operands: tuple[Node, ...],
        value: float = 0.0,
        place: int = 0,
        uniform: bool = False,
        depth: int = 0,
    ) -> Node:
        node = Node(len(self.nodes), op, operands, value, place, uniform, depth)
        self.nodes.append(node)
        return node


def _extent(uniform: bool, depth: int) -> str:
    """A value is per element, per row or per call. Simplifications keep this: it decides the shape of a result."""
    return "element" if not uniform else "row" if depth else "call"


def needed(nodes: Iterable[Node], within_stage: bool = False) -> list[Node]:
    """These nodes and their operands, recursively, in topological order. Within a stage, reductions are leaves."""
    found: dict[int, Node] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.index not in found:
            found[node.index] = node
            if not (within_stage and node.op in ROWS):
                pending.extend(node.operands)
    return [found[index] for index in sorted(found)]


def copied(
    graph: Graph, nodes: Sequence[Node], replace: Callable[[Graph, str, Node], Node | None] | None = None
) -> list[Node]:
    """The nodes in another graph with the same inputs. `replace(graph, op, operand)` may return another value."""
    copies: dict[Node, Node] = {}
    for node in needed(nodes):
        if node.op == "input":
            copies[node] = graph.inputs[node.place]
        elif node.op == "constant":
            copies[node] = graph.constant(node.value)
        else:
            operands = [copies[operand] for operand in node.operands]
            other = replace(graph, node.op, operands[0]) if replace else None
            copies[node] = other or graph.apply(node.op, *operands)
    return [copies[node] for node in nodes]
