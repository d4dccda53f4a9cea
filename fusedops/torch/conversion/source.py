"""What a `forward` computes, as a sequence of tokens in which the names that somebody chose are left out.

Two functions with the same tokens compute the same. The tokens are those of the syntax tree. Left out are comments,
docstrings, annotations and the names of arguments and variables, which are numbered in order of appearance; so are the
module's own attributes. A global name is what it stands for at this moment: an object of torch is itself, and a
function or method that is not torch's is replaced by its own tokens. A decorator needs no rule, since it is the
function that is there at last which is read: one that a decorator has wrapped has the tokens of the wrapper. Defaults
are read from the function, not from its source. Source that is not what is run, since somebody has changed its file, is
none.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

_CONSTANTS = (bool, int, float, str, type(None))
# Functions that others are wrapped in, by their modules: this one has a layer computed again in the backward.
_WRAPPERS = frozenset({("transformers.modeling_layers", "forward_with_checkpointing")})
_OF_EVERY_MODULE = frozenset({"training"})  # attributes that mean the same in all modules


class NoSource(Exception):
    """Says which function has none."""


class TooLong(Exception):
    """The function has more tokens than are asked for."""


@dataclass(frozen=True)
class Place:
    """A line of a function, which begins with its `def`."""

    function: str
    line: int
    text: str


@dataclass(frozen=True)
class Code:
    """What a function computes.

    `attributes` are those that it reads of the module, in the order of their numbers, and `methods` those of its class
    that it calls. `handed_on` are the parameters that it does nothing with but hand them on under their own names, of
    each call that does.
    """

    tokens: tuple[Hashable, ...]
    places: tuple[Place, ...]  # of each token
    attributes: tuple[str, ...]
    methods: tuple[str, ...]
    handed_on: tuple[frozenset[str], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)


def of_method(kind: type, name: str, limit: int | None = None) -> Code:
    """What a method of a class computes.

    Raises:
        NoSource: it is not to be read.
        TooLong: it has more than `limit` tokens, those of what it calls among them.
    """
    return _read(plain(inspect.getattr_static(kind, name)), kind, limit)


def of_function(function: Any, limit: int | None = None) -> Code:
    """What a function computes; it raises what `of_method` does."""
    return _read(function, None, limit)


def plain(function: Any) -> Any:
    """What a wrapper of transformers calls that changes nothing of what is computed; anything else unchanged."""
    while isinstance(function, FunctionType):
        wrapper = function.__globals__.get("__name__"), function.__code__.co_name
        if wrapper not in _WRAPPERS:
            break
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def _read(function: Any, kind: type | None, limit: int | None) -> Code:
    if not isinstance(function, FunctionType):
        raise NoSource(f"its {getattr(function, '__name__', type(function).__name__)} is not a plain function")
    if limit is not None and len(function.__code__.co_names) > limit:  # at least a token each
        raise TooLong
    reader = _Reader(kind, limit)
    reader.function(function)
    tokens, places = zip(*reader.found, strict=True)
    return Code(tokens, places, tuple(reader.attributes), tuple(reader.methods), tuple(reader.handed_on))


def tree_of(function: FunctionType) -> tuple[ast.FunctionDef, int]:
    """The syntax tree of a function, whose lines begin with its `def`, and the line of that in the file.

    Raises:
        NoSource: it is not to be read.
    """
    parsed = _parsed(function.__code__)
    return parsed.tree, parsed.line


def parameters(function: FunctionType) -> tuple[str, ...]:
    """The names of all parameters, `*args` and `**kwargs` among them, as Python orders variables."""
    return _parameters(function.__code__)


def _parameters(code: CodeType) -> tuple[str, ...]:
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]


def shared(code: Code, other: Code) -> float:
    """How much two functions have in common before and after the one place in which they differ."""
    longest, shortest = max(len(code.tokens), len(other.tokens)), min(len(code.tokens), len(other.tokens))
    before = _common(code.tokens, other.tokens)
    after = _common(code.tokens[::-1], other.tokens[::-1])
    return min(before + after, shortest) / longest


def difference(code: Code, other: Code) -> str:
    """Where the first of two functions begins to differ from the other: "in line 3, 'x = 2 * x'"."""
    place = code.places[min(_common(code.tokens, other.tokens), len(code.places) - 1)]
    of = f" of {place.function}" if place.function != code.places[0].function else ""
    text = place.text if len(place.text) <= 80 else f"{place.text[:77]}..."
    return f"in line {place.line}{of}: {text}"


def _common(tokens: Sequence[Hashable], others: Sequence[Hashable]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((count for count, (x, y) in pairs if x != y), min(len(tokens), len(others)))


class _Reader:
    """Collects the tokens of a function and of those that it calls."""

    def __init__(self, kind: type | None, limit: int | None) -> None:
        self.kind, self.limit = kind, limit
        self.found: list[tuple[Hashable, Place]] = []
        self.attributes: dict[str, int] = {}
        self.methods: dict[str, None] = {}
        self.functions: dict[FunctionType, int] = {}
        self.handed_on: list[frozenset[str]] = []

    def function(self, function: FunctionType, is_method: bool = True) -> None:
        """The tokens of a function; of one that was there before, its number."""
        is_new = function not in self.functions
        number = self.functions.setdefault(function, len(self.functions))
        if is_new:
            _FunctionReader(self, function, is_method and self.kind is not None).read()
        else:
            self.found.append((("function", number), self.found[-1][1]))


class _FunctionReader:
    """Collects the tokens of one function."""

    def __init__(self, reader: _Reader, function: FunctionType, is_method: bool) -> None:
        self.reader, self.plain = reader, function
        parsed = _parsed(function.__code__)
        self.tree, self.lines, self.own = parsed.tree, parsed.lines, parsed.own
        names = parameters(function)
        self.module = names[0] if is_method and names else None  # what the method calls itself, "self" for most
        self.variables: dict[str, int] = {}
        self.handed_on = parsed.handed_on - {self.module}
        closure = function.__closure__ or ()
        self.closure = dict(zip(function.__code__.co_freevars, closure, strict=True))
        self.line = 1

    def read(self) -> None:
        self.token("def")
        self.body(self.tree.body)
        given = self.tree.args
        positional = [*given.posonlyargs, *given.args]
        last = (each.arg for each in positional[::-1])
        defaults = dict(zip(last, (self.plain.__defaults__ or ())[::-1], strict=False))
        defaults |= self.plain.__kwdefaults__ or {}
        self.line = 1
        self.parameters("positional", positional, defaults)
        self.parameters("keyword", given.kwonlyargs, defaults)
        self.parameters("star", [given.vararg], {})
        self.parameters("stars", [given.kwarg], {})

    def parameters(self, kind: str, given: Sequence[ast.arg | None], defaults: Mapping[str, Any]) -> None:
        """Those that the function does something with: which variable of its own each is."""
        for position, each in enumerate(given):
            if each and each.arg not in self.handed_on:
                self.token(kind, position, self.variable(each.arg))
                if each.arg in defaults:
                    self.given(defaults[each.arg])

    def variable(self, name: str) -> int:
        return self.variables.setdefault(name, len(self.variables))

    def token(self, *parts: Hashable) -> None:
        if self.reader.limit is not None and len(self.reader.found) > self.reader.limit:
            raise TooLong
        text = self.lines[self.line - 1].strip() if self.line <= len(self.lines) else ""
        self.reader.found.append((parts, Place(self.plain.__name__, self.line, text)))

    def node(self, node: Any) -> None:
        """The tokens of anything in a tree."""
        if isinstance(node, ast.AST):
            self.line = getattr(node, "lineno", self.line)
            own = getattr(self, f"_{type(node).__name__}", None)
            if own:
                own(node)
            else:
                self.generic(node)
        elif isinstance(node, list):
            self.token("list", len(node))
            for each in node:
                self.node(each)
        else:
            self.token("value", type(node).__name__, repr(node))

    def generic(self, node: ast.AST) -> None:
        self.token(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                self.body(value)
            elif name not in ("annotation", "ctx", "type_comment", "returns"):
                self.node(value)

    def body(self, statements: list[ast.stmt]) -> None:
        statements = [each for each in statements if not _is_string(each)]
        if len(statements) > 1 and _returns_what_was_assigned(*statements[-2:]):
            last: Any = statements[-2]
            statements[-2:] = [ast.copy_location(ast.Return(last.value), last)]
        self.node(statements)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            self.generic(node)
        else:
            self.generic(ast.copy_location(ast.Assign([node.target], node.value), node))

    def _Constant(self, node: ast.Constant) -> None:
        self.constant(node.value)

    def constant(self, value: Any) -> None:
        self.token("constant", type(value).__name__, repr(value))

    def _Name(self, node: ast.Name) -> None:
        if node.id in self.own:
            self.token("variable", self.variable(node.id))
        else:
            self.value(node.id)

    def _arg(self, node: ast.arg) -> None:  # of a lambda
        self.token("variable", self.variable(node.arg))

    def _Attribute(self, node: ast.Attribute) -> None:
        if self.is_module(node.value):
            self.attribute(node.attr)
            return
        value = self.inherited(node) if _is_super(node.value) else self.known(node)
        if value is _UNKNOWN:
            self.generic(node)
        else:
            self.value(ast.unparse(node), value)

    def _Call(self, node: ast.Call) -> None:
        handed_on = frozenset(filter(None, map(self.own_name, node.keywords))) & self.handed_on
        keywords = [keyword for keyword in node.keywords if self.own_name(keyword) not in handed_on]
        self.token("call", len(node.args), len(keywords), bool(handed_on))
        if handed_on:
            self.reader.handed_on.append(handed_on)
        self.node(node.func)
        self.node(node.args)
        function = self.called(node.func)
        names = parameters(function) if function else ()
        for keyword in keywords:
            # A function whose own tokens are here has no names of parameters.
            self.token("keyword", names.index(keyword.arg) if keyword.arg in names else keyword.arg)
            self.node(keyword.value)

    def own_name(self, keyword: ast.keyword) -> str | None:
        return _own_name(keyword, self.tree.args.kwarg)

    def called(self, node: ast.expr) -> FunctionType | None:
        """The function of which the tokens are here, if it is one."""
        if isinstance(node, ast.Attribute) and self.is_module(node.value):
            return self.method(node.attr)[0]
        value = self.known(node)
        return value if _is_to_be_read(value) else None

    def is_module(self, node: ast.expr) -> bool:
        return self.module is not None and isinstance(node, ast.Name) and node.id == self.module

    def method(self, name: str) -> tuple[FunctionType | None, bool]:
        """The function that the module's class has under this name, if it has one, and whether it gets the module."""
        value: Any = inspect.getattr_static(self.reader.kind, name, None)
        is_static = isinstance(value, staticmethod)
        function = value.__func__ if is_static else value
        return function if _is_to_be_read(function) else None, not is_static

    def attribute(self, name: str) -> None:
        """One of the module itself."""
        method, gets_module = self.method(name)
        if method:
            self.reader.methods[name] = None
            self.token("method" if gets_module else "static method")
            self.reader.function(method, gets_module)
        elif name in _OF_EVERY_MODULE or hasattr(self.reader.kind, name):
            self.token("member", name)  # such as a property, which may be anything
        else:
            self.token("attribute", self.reader.attributes.setdefault(name, len(self.reader.attributes)))

    def known(self, node: ast.expr) -> Any:
        """What a global name stands for, or an attribute of a module of Python; _UNKNOWN for all else."""
        if isinstance(node, ast.Name):
            return _UNKNOWN if node.id in self.own else self.named(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.known(node.value)
            if isinstance(owner, ModuleType):
                return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN

    def inherited(self, node: ast.Attribute) -> Any:
        """The method of `super().method`."""
        cell = self.closure.get("__class__")
        if cell is None or self.reader.kind is None or "super" in self.own:
            return _UNKNOWN
        return getattr(super(cell.cell_contents, self.reader.kind), node.attr, _UNKNOWN)

    def named(self, name: str) -> Any:
        if name in self.closure:
            return self.closure[name].cell_contents
        return self.plain.__globals__.get(name, getattr(builtins, name, _UNKNOWN))

    def value(self, name: str, value: Any = None) -> None:
        value = self.named(name) if value is None else value
        if value is _UNKNOWN:
            self.token("unknown", name)
        else:
            self.given(value)

    def given(self, value: Any) -> None:
        if isinstance(value, _CONSTANTS):
            self.constant(value)
        elif _is_to_be_read(value):
            self.reader.function(value, is_method=False)
        else:
            self.token("object", id(value))


_UNKNOWN = object()


def _is_to_be_read(value: Any) -> bool:
    """Whether it is a function with a source that is neither torch's nor Python's."""
    if not isinstance(value, FunctionType) or (value.__module__ or "").partition(".")[0] in _LIBRARIES:
        return False
    try:
        return bool(_parsed(value.__code__))
    except NoSource:
        return False


_LIBRARIES = frozenset({"torch", *sys.stdlib_module_names} - {"__main__"})


def _is_string(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def _returns_what_was_assigned(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether they are `name = …` and `return name`."""
    if not isinstance(second, ast.Return) or not isinstance(second.value, ast.Name):
        return False
    targets = first.targets if isinstance(first, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == second.value.id


def _stored(tree: ast.AST) -> Iterator[str]:
    """The names that are bound within, those of comprehensions and lambdas among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _is_super(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_call and not (node.args or node.keywords)  # type: ignore[attr-defined]


def _own_name(keyword: ast.keyword, stars: ast.arg | None) -> str | None:
    """x of `x=x`, and of `**x` where x is all further arguments."""
    value = keyword.value
    if not isinstance(value, ast.Name):
        return None
    is_own = keyword.arg == value.id or (keyword.arg is None and stars is not None and stars.arg == value.id)
    return value.id if is_own else None


def _handed_on(tree: ast.FunctionDef, parameters: frozenset[str]) -> frozenset[str]:
    """The parameters that are only handed on under their own names; those not used at all, where there are such."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [_own_name(keyword, tree.args.kwarg) for call in calls for keyword in call.keywords]
    counts = Counter(name for name in names if name in parameters)
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    positional = tree.args.vararg.arg if tree.args.vararg else None
    only = frozenset(name for name in parameters if counts[name] == uses[name] and name != positional)
    return only if any(counts[name] for name in only) else frozenset()


@dataclass(frozen=True)
class _Parsed:
    """A function's tree and its lines, from its `def` on, the names of its own, and those that it only hands on."""

    tree: ast.FunctionDef
    lines: list[str]
    own: frozenset[str]
    handed_on: frozenset[str]
    line: int  # of its `def` in the file


@functools.lru_cache(4096)
def _parsed(code: CodeType) -> _Parsed:
    missing = NoSource(f"the source of its {code.co_name} is not to be found")
    # inspect.getsource would look through all modules of Python for the one that the code is of.
    linecache.checkcache(code.co_filename)
    text = linecache.getlines(code.co_filename)
    lines = text[code.co_firstlineno - 1 :]
    try:
        own = _in_file(code, "".join(text))
        if own is None:
            raise missing
        source = textwrap.dedent("".join(inspect.getblock(lines)))
        tree = ast.parse(source).body[0]
    except (SyntaxError, IndexError, ValueError, RecursionError, tokenize.TokenError):
        raise missing from None
    if not isinstance(tree, ast.FunctionDef) or tree.name != own.co_name:
        raise missing
    lines = source.splitlines()[tree.lineno - 1 :]
    line = code.co_firstlineno + tree.lineno - 1
    ast.increment_lineno(tree, 1 - tree.lineno)
    names = frozenset({*code.co_varnames, *code.co_cellvars, *_stored(tree)})
    return _Parsed(tree, lines, names, _handed_on(tree, frozenset(_parameters(code))), line)


def _in_file(code: CodeType, text: str) -> CodeType | None:
    """The code in that file, under the name that it has there: torch 2.15 renames what decorates a function."""
    found = _compiled(text)
    if code in found:
        return code
    alike = (x for x in found if x.co_code == code.co_code and x.co_firstlineno == code.co_firstlineno)
    return next((x for x in alike if x.replace(co_name=code.co_name) == code), None)


@functools.lru_cache(64)
def _compiled(text: str) -> frozenset[CodeType]:
    """What Python makes of the functions in a file as it is now: those that are run may be of an earlier one."""
    found = {compile(text, "", "exec", dont_inherit=True)}
    within = found
    while within:
        within = {each for code in within for each in code.co_consts if isinstance(each, CodeType)}
        found |= within
    return frozenset(found)
