"""Programs: the instructions of an expression, stage by stage, and the names around them, as the core takes them.

A stage computes the terms of the reductions that depend on earlier stages only; the last stage computes the results. It
recomputes the values of earlier stages that it needs: between two passes over a row only reductions are kept.

Roundings are decided here, once for the whole program, and the engines follow. So a value that two stages compute has
the same bits in both, and an element equals the maximum that it gave.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fusedops.expressions import source, text
from fusedops.expressions.derive import vjp
from fusedops.expressions.expand import expanded
from fusedops.expressions.graph import OPERATIONS, ROWS, Graph, Node, copied, needed

_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}

TENSOR, OPTIONAL, NUMBER = range(3)  # kinds of inputs; an absent optional input counts as zero

MAX_INPUTS, MAX_RESULTS = 24, 12  # limits of the core's operators, which no derivative exceeds


@dataclass(frozen=True)
class Input:
    name: str
    kind: int


@dataclass(frozen=True)
class Result:
    name: str
    value: int  # index in the last stage
    like: int | None  # the input to whose shape it is summed; None: the shape to which all inputs broadcast
    of_rows: bool = False  # one element per row: made of reductions and numbers alone


@dataclass(frozen=True)
class Reduction:
    kind: int  # index in ROWS
    stage: int
    value: int  # index in its stage


@dataclass(frozen=True)
class Instruction:
    op: int
    a: int = 0
    b: int = 0
    c: int = 0
    value: float = 0.0


@dataclass(frozen=True)
class Program:
    stages: tuple[tuple[Instruction, ...], ...]
    reductions: tuple[Reduction, ...]
    values: tuple[int, ...]  # of the results, in the last stage


def program(results: Sequence[Node]) -> Program:
    """The program of a graph of primitives."""
    nodes = needed(results)
    rows = sorted((node for node in nodes if node.op in ROWS), key=lambda node: (node.depth, node.index))
    numbers = {node: number for number, node in enumerate(rows)}
    products = _fused_products(nodes, results)
    stages = max((node.depth for node in rows), default=0)
    code, reductions = list[tuple[Instruction, ...]](), list[Reduction]()
    for stage in range(stages):
        here = [node for node in rows if node.depth == stage + 1]
        instructions, places = _stage([node.operands[0] for node in here], numbers, products)
        code.append(instructions)
        reductions += [Reduction(ROWS.index(node.op), stage, places[node.operands[0]]) for node in here]
    instructions, places = _stage(results, numbers, products)
    return Program((*code, instructions), tuple(reductions), tuple(places[node] for node in results))


def _fused_products(nodes: Sequence[Node], results: Sequence[Node]) -> dict[Node, Node]:
    """The product that each fused sum or difference absorbs: one without any other reader."""
    readers = Counter(results)
    for node in nodes:
        readers.update(node.operands)
    products = dict[Node, Node]()
    for node in nodes:
        if node.op in ("add", "sub"):
            alone = [operand for operand in node.operands if operand.op == "mul" and readers[operand] == 1]
            if alone:
                products[node] = alone[0]
    return products


def _stage(
    wanted: Sequence[Node], numbers: dict[Node, int], products: dict[Node, Node]
) -> tuple[tuple[Instruction, ...], dict[Node, int]]:
    absorbed = set(products.values())
    places: dict[Node, int] = {}
    code: list[Instruction] = []
    for node in needed(wanted, within_stage=True):
        if node in absorbed:
            continue
        if node.op == "input":
            instruction = Instruction(_NUMBERS["input"], node.place)
        elif node.op == "constant":
            instruction = Instruction(_NUMBERS["constant"], value=node.value)
        elif node.op in ROWS:
            instruction = Instruction(_NUMBERS["reduced"], numbers[node])
        elif node in products:
            instruction = _fused(node, products[node], places)
        else:
            instruction = Instruction(_NUMBERS[node.op], *(places[operand] for operand in node.operands))
        places[node] = len(code)
        code.append(instruction)
    return tuple(code), places


def _fused(node: Node, product: Node, places: dict[Node, int]) -> Instruction:
    first, second = node.operands
    other = second if first is product else first
    op = "fma" if node.op == "add" else "fms" if first is product else "fnma"
    return Instruction(_NUMBERS[op], *(places[operand] for operand in (*product.operands, other)))


@dataclass(frozen=True)
class Definition:
    """The definition of an operator of the table."""

    name: str
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    program: Program
    needs: bool  # True if attributes need_<result> select the wanted results
    key: str  # everything that defines it and its derivatives
    backward_name: str | None  # the operator of the derivative
    graph: Graph
    nodes: tuple[Node, ...]  # the results before expansion

    @property
    def source(self) -> str:
        """C++ code for GPUs."""
        return source.source(self)

    @property
    def text(self) -> str:
        """The definition as an expression."""
        return text.text(self)

    def backward(self) -> Definition:
        """The operator of the derivative. Its inputs are those of this operator, then d<result> for each result,
        optional if there are several. Its results are d<input> for each input, of the inputs' shapes.

        Raises:
            ValueError: The operator would have too many inputs.
        """
        return self._backward

    @cached_property
    def _backward(self) -> Definition:
        if self.backward_name is None:
            raise ValueError(f"fusedops.{self.name}: a derivative must have at most {MAX_INPUTS} inputs; got more")
        graph, inputs, upstream = Graph(), list(self.inputs), list[Node]()
        for node in self.graph.inputs:
            graph.input(node.uniform)
        results = copied(graph, self.nodes)
        names = _Names(input.name for input in inputs)
        for result in self.results:
            inputs.append(Input(names.new(f"d{result.name}"), TENSOR if len(self.results) == 1 else OPTIONAL))
            upstream.append(_of_elements(graph, graph.input(result.of_rows)))
        derivatives = vjp(graph, results, upstream, graph.inputs[: len(self.inputs)])
        return define(
            self.backward_name,
            f"{self.key} backward",
            graph,
            tuple(inputs),
            derivatives,
            [names.new(f"d{input.name}", result=True) for input in self.inputs],
            like=range(len(self.inputs)),
        )


def _of_elements(graph: Graph, upstream: Node) -> Node:
    """The upstream gradient of a result per element of a row: equal shares of a per-row gradient."""
    if not upstream.uniform:
        return upstream
    return graph.apply("div", upstream, graph.apply("row_sum", graph.constant(1)))


def define(
    name: str,
    key: str,
    graph: Graph,
    inputs: tuple[Input, ...],
    nodes: Sequence[Node],
    results: Sequence[str],
    of_rows: Sequence[bool] = (),
    like: Sequence[int] = (),
) -> Definition:
    """Args:
    of_rows: a flag for each result of an expression.
    like: the input of each result of a derivative.
    """
    found = program(expanded(graph, nodes))
    differentiable = len(inputs) + len(results) <= MAX_INPUTS and len(inputs) <= MAX_RESULTS
    return Definition(
        name,
        inputs,
        tuple(
            Result(result, value, like[i] if like else None, bool(of_rows) and of_rows[i])
            for i, (result, value) in enumerate(zip(results, found.values, strict=True))
        ),
        found,
        bool(like),
        key,
        f"{name}_backward" if differentiable else None,
        graph,
        tuple(nodes),
    )


def is_of_rows(node: Node, numbers: Sequence[bool]) -> bool:
    """True if the value is per row: reductions, and numbers as flagged in `numbers`, alone."""
    inputs = (x for x in needed([node], within_stage=True) if x.op == "input")
    return node.depth > 0 and all(numbers[x.place] for x in inputs)


def key(
    name: str, inputs: Sequence[Input], results: Sequence[str], of_rows: Sequence[bool], nodes: Sequence[Node]
) -> str:
    """Text of everything that defines an operator and its derivatives, identical in every process."""
    places = {node: place for place, node in enumerate(needed(nodes))}
    code = [(node.op, [places[x] for x in node.operands], node.value, node.place) for node in places]
    return repr((name, inputs, results, of_rows, code, [places[node] for node in nodes]))


def digest(key: str) -> str:
    """16 hexadecimal digits, so that names of different keys differ in more than case and underscores."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


class _Names:
    """Unused names. A result reserves the names of its gradient and of its need_ attribute as well."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)

    def new(self, name: str, result: bool = False) -> str:
        chosen, number = name, 1
        while not self.taken.isdisjoint(_all_names(chosen, result)):
            number += 1
            chosen = f"{name}_{number}"
        self.taken.update(_all_names(chosen, result))
        return chosen


def _all_names(name: str, result: bool) -> tuple[str, ...]:
    return (name, f"d{name}", f"need_{name}") if result else (name,)


_WORDS = (*dir(builtins), *keyword.kwlist, "name", "wanted")
_MAX_CHARACTERS = 32  # of a name: the core takes 48, some of them for the prefixes of derivatives


def input_names(names: Sequence[str]) -> list[str]:
    """Names of operator inputs. TensorFlow takes lower-case names only, and generated code reserves other words and
    breaks at long ones."""
    free = _Names(_WORDS)
    found = []
    for name in names:
        plain = re.sub("^_*([0-9]|$)", r"x\1", name.lower()).lstrip("_")[:_MAX_CHARACTERS]
        # In torch, the number for a scalar input x is x_value.
        found.append(free.new(f"{plain}_of" if plain.endswith("_value") else plain))
    return found


def result_names(inputs: Collection[str], plain: Sequence[str | None]) -> list[str]:
    """The results' own names where they have free ones; otherwise y, or y0, y1 and so on."""
    names = _Names([*inputs, *_WORDS])
    given = {place: name.lower() for place, name in enumerate(plain) if name and len(plain) > 1}
    given = {place: name for place, name in given.items() if len(name) <= _MAX_CHARACTERS}
    own = {place: name for place, name in given.items() if names.new(name, result=True) == name}
    others = "y" if len(plain) == 1 else "y{}"
    return [own.get(place) or names.new(others.format(place), result=True) for place in range(len(plain))]
