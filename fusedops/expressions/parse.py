"""Parses text into a graph. The text is never executed: it is read token by token, and unknown input is refused."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from fusedops.expressions import expand
from fusedops.expressions.graph import COMPARISONS, Graph, Node
from fusedops.expressions.tokens import Token, fail, fail_at, read

MAX_CHARACTERS = 10_000
MAX_INPUTS = 8
MAX_RESULTS = 4
MAX_OPERATIONS = 500

CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
_OF_ONE = (
    *("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "abs", "floor", "sign"),
    *("relu", "gelu", "gelu_tanh", "silu", "softplus"),
)
# The operation of each function by its number of arguments.
FUNCTIONS: dict[str, dict[int, str]] = {
    **{name: {1: name} for name in _OF_ONE},
    "where": {3: "where"},
    "min": {1: "row_min", 2: "min"},
    "max": {1: "row_max", 2: "max"},
    "sum": {1: "row_sum"},
    "mean": {1: "row_mean"},
}
# Functions of PyTorch, TensorFlow, NumPy and C, and their equivalents in expressions.
_WRITTEN_AS = {
    **dict.fromkeys(("clamp", "clip", "clip_by_value"), "min(max(x, low), high)"),
    **dict.fromkeys(("maximum", "fmax"), "max(a, b)"),
    **dict.fromkeys(("minimum", "fmin"), "min(a, b)"),
    **dict.fromkeys(("pow", "power"), "a ** b"),
    "square": "x * x",
    "swish": "silu(x)",
}
_COMPARISONS = {symbol: op for op, symbol in COMPARISONS.items()}
_BINARY = {**_COMPARISONS, "+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}
_SIGN, _POWER = 4, 5
_STRENGTH = {**dict.fromkeys(_COMPARISONS, 1), "+": 2, "-": 2, "*": 3, "/": 3, "**": _POWER}

_FUNCTION_NAMES = ", ".join(sorted(FUNCTIONS))

_ASSIGNED = re.compile(r"\w+[ \t]*=(?!=)", re.ASCII)
_CALLED = re.compile(r"\w+[ \t]*\(", re.ASCII)


class Parsed(NamedTuple):
    graph: Graph
    inputs: tuple[str, ...]
    results: tuple[Node, ...]
    names: tuple[str | None, ...]  # of results that are plain names


class _Pending(NamedTuple):
    """A stack entry that waits for its last operand: an operator, or, with strength 0, a parenthesis."""

    token: Token
    strength: int
    operands: int = 0  # of a call or parenthesis: the size of the value stack below it


def parse(text: str, inputs: Sequence[str] | None = None) -> Parsed:
    """The graph of an expression. By default the inputs are the unassigned names, in order of appearance."""
    if len(text) > MAX_CHARACTERS:
        fail(f"an expression must have at most {MAX_CHARACTERS} characters; got {len(text)}")
    return _Parser(text, inputs).parse()


class _Parser:
    """An operator-precedence parser with explicit stacks, so that no nesting is too deep."""

    def __init__(self, text: str, inputs: Sequence[str] | None) -> None:
        self.text, self.declared = text, inputs
        self.graph = Graph()
        self.inputs: dict[str, Node] = {}
        self.used: set[str] = set()
        self.assigned: dict[str, Node] = {}
        self.operations = self.open = 0  # open: the number of open parentheses
        self.values: list[Node] = []
        self.waiting: list[_Pending] = []
        for name in inputs or ():
            self.add_input(name)
        self.tokens = read(text)
        self.before, self.token = Token("symbol", "\n", 0), next(self.tokens)

    def parse(self) -> Parsed:
        last: Node | None = None
        results: list[tuple[Node, str | None]] = []
        while self.skip_separators().kind != "end":
            first = self.token
            if first.text == "return":
                self.advance()
                results = self.results()
            elif first.kind == "name" and _ASSIGNED.match(self.text, first.at):
                self.check_word(first)
                if first.text in FUNCTIONS:
                    self.fail(f"the function {first.text!r} must not be assigned", first)
                self.advance()
                self.advance()
                last = self.assigned[first.text] = self.expression()
            else:
                results = [(self.expression(), None)]
            if self.token.text == ",":
                self.fail("unexpected ','", self.token, "several results are written as: return a, b")
            if results and self.skip_separators().kind != "end":
                self.fail("a value without a name must come last", first)
        if last and not results:
            results = [(last, None)]
        if not results:
            self.fail("expected an expression", self.token)
        for name in self.declared or ():
            if name not in self.used:
                fail(f"the input {name!r} is not used in the expression")
        if not self.inputs:
            fail("an expression must have an input; got none")
        return Parsed(
            self.graph, tuple(self.inputs), tuple(node for node, _ in results), tuple(name for _, name in results)
        )

    def results(self) -> list[tuple[Node, str | None]]:
        found: list[tuple[Node, str | None]] = []
        while True:
            first = self.token
            node = self.expression()
            plain = first.kind == "name" and self.before is first
            found.append((node, first.text if plain else None))
            if self.token.text != ",":
                return found
            if len(found) == MAX_RESULTS:
                self.fail(f"an expression must have at most {MAX_RESULTS} results", self.token, "got more")
            self.advance()

    def expression(self) -> Node:
        """Parses up to the end of the statement, or to a comma between results."""
        while True:
            self.operand()
            while self.token.text == ")":
                self.close()
            token = self.token
            if token.text in _BINARY:
                self.operator(token)
            elif token.text == "," and self.open:
                self.reduce(1)
                if self.waiting[-1].token.kind != "name":
                    self.fail("unexpected ','", token, "it must be between arguments or results")
            elif not self.open and (token.kind == "end" or token.text in ("\n", ";", ",")):
                self.reduce(1)
                return self.values.pop()
            else:
                self.no_operator(token)
            self.advance()

    def operand(self) -> None:
        """Reads signs, parentheses and function names, up to and including a number or a name."""
        while True:
            token = self.token
            if token.kind == "number":
                self.values.append(self.graph.constant(float(token.text)))
                return self.advance()
            if token.kind == "name":
                self.check_word(token)
                if not _CALLED.match(self.text, token.at):
                    self.values.append(self.named(token))
                    return self.advance()
                if token.text not in FUNCTIONS:
                    written_as = _WRITTEN_AS.get(token.text)
                    advice = f"write {written_as}" if written_as else f"there are {_FUNCTION_NAMES}"
                    self.fail(f"unknown function {token.text!r}", token, advice)
                self.open += 1
                self.advance()
                self.waiting.append(_Pending(token, 0, len(self.values)))
            elif token.text == "(":
                self.open += 1
                self.waiting.append(_Pending(token, 0, len(self.values)))
            elif token.text == "-":
                self.waiting.append(_Pending(token, _SIGN))
            else:
                self.no_operand(token)
            self.advance()

    def operator(self, token: Token) -> None:
        if token.text in _COMPARISONS:
            self.reduce(2)
            if self.waiting and self.waiting[-1].token.text in _COMPARISONS:
                self.fail("comparisons must not be chained", token, "write (a < b) * (b < c)")
        strength = _STRENGTH[token.text]
        self.reduce(strength + (token.text == "**"))  # the only right-associative operator
        self.waiting.append(_Pending(token, strength))

    def close(self) -> None:
        if not self.open:
            self.fail("this ')' has no '('", self.token)
        self.reduce(1)
        opened = self.waiting.pop()
        if opened.token.kind == "name":
            operations, arguments = FUNCTIONS[opened.token.text], self.values[opened.operands :]
            if len(arguments) not in operations:
                self.wrong_arguments(opened.token, len(arguments))
            self.apply(opened.token, operations[len(arguments)], arguments)
        self.open -= 1
        self.advance()

    def reduce(self, weakest: int) -> None:
        """Applies the waiting operators of at least this strength within the innermost parenthesis."""
        while self.waiting and self.waiting[-1].strength >= weakest:
            token, strength, _ = self.waiting.pop()
            if strength == _SIGN:
                self.apply(token, "neg", self.values[-1:])
            else:
                self.apply(token, _BINARY[token.text], self.values[-2:])

    def apply(self, token: Token, operation: str, operands: list[Node]) -> None:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            self.fail(f"an expression must have at most {MAX_OPERATIONS} operations", token, "got more")
        del self.values[-len(operands) :]
        expand_early = expand.EXPANDED_EARLY.get(operation)
        self.values.append(
            expand_early(self.graph, *operands) if expand_early else self.graph.apply(operation, *operands)
        )

    def named(self, token: Token) -> Node:
        name = token.text
        if name in self.assigned:
            return self.assigned[name]
        if name in FUNCTIONS:
            self.fail(f"the function {name!r} must have arguments", token)
        if name not in self.inputs:
            if name in CONSTANTS:
                return self.graph.constant(CONSTANTS[name])
            if self.declared is not None:
                self.fail(f"unknown input {name!r}", token, f"there are {', '.join(self.inputs)}")
            if len(self.inputs) == MAX_INPUTS:
                self.fail(f"an expression must have at most {MAX_INPUTS} inputs", token, "got more")
            self.add_input(name)
        self.used.add(name)
        return self.inputs[name]

    def add_input(self, name: str) -> None:
        self.inputs[name] = self.graph.input()

    def check_word(self, token: Token) -> None:
        if keyword.iskeyword(token.text):
            advice = "where(c, a, b) chooses" if token.text in ("if", "else", "and", "or", "not") else ""
            self.fail(f"unexpected word {token.text!r}", token, advice)

    def no_operand(self, token: Token) -> NoReturn:
        opened = self.waiting[-1] if self.waiting else None
        if token.text == ")" and opened and opened.token.kind == "name" and self.before.text == "(":
            self.wrong_arguments(opened.token, 0)
        if self.before.text in ("", "\n", ";"):
            self.fail(f"expected an operand before {token.shown}", token)
        ended = token.kind == "end" or token.text in ("\n", ";")
        got = "" if ended else f", not {token.shown},"
        self.fail(f"expected an operand after {self.before.text!r}{got}", self.before if ended else token)

    def no_operator(self, token: Token) -> NoReturn:
        self.check_word(token)
        if token.kind == "end" or token.text == ";":
            opened = next(pending.token for pending in reversed(self.waiting) if not pending.strength)
            which = f"the '(' of {opened.text!r}" if opened.kind == "name" else "this '('"
            self.fail(f"{which} is never closed", opened)
        if token.text == "=":
            advice = "arguments have no names" if self.open else "it must follow a name that begins a statement"
            self.fail("unexpected '='", token, advice)
        self.fail(f"expected an operator before {token.text!r}", token)

    def wrong_arguments(self, token: Token, got: int) -> NoReturn:
        counts = list(FUNCTIONS[token.text])
        plural = "" if counts == [1] else "s"
        expected = f"{' or '.join(map(str, counts))} argument{plural}"
        self.fail(f"the function {token.text!r} must have {expected}", token, f"got {got}")

    def advance(self) -> None:
        self.before, self.token = self.token, next(self.tokens)
        while self.open and self.token.text == "\n":
            self.token = next(self.tokens)

    def skip_separators(self) -> Token:
        while self.token.text in ("\n", ";"):
            self.advance()
        return self.token

    def fail(self, sentence: str, token: Token, more: str = "") -> NoReturn:
        fail_at(self.text, token, sentence, more)
