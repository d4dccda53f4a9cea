"""Normalizes the code of a function to tokens that do not depend on the names in it.

Two functions with the same tokens compute the same. The tokens are those of the syntax tree, without comments,
docstrings and annotations. Arguments, variables and the module's own attributes are numbered in order of appearance. A
global name is replaced by its present value: an object of torch stands for itself, and any other function or method is
replaced by its own tokens. A decorated function has the tokens of its wrapper. Defaults are those of the function
object. If the file has changed since the function was compiled, there is no source.
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
# (module, name) of known wrappers: this one recomputes a layer in the backward.
_WRAPPERS = frozenset({("transformers.modeling_layers", "forward_with_checkpointing")})
_COMMON_ATTRIBUTES = frozenset({"training"})  # attributes with the same meaning in all modules


class NoSource(Exception):
    """A function's source was not found. The message names the function."""


class TooLong(Exception):
    """The function has more tokens than the limit."""


@dataclass(frozen=True)
class Place:
    """A line of a function; line 1 has its `def`."""

    function: str
    line: int
    text: str


@dataclass(frozen=True)
class Code:
    """The normalized code of a function.

    Attributes:
        attributes: names of the module's attributes that it reads, in the order of their numbers.
        methods: names of the methods of its class that it calls.
        forwarded: for each call that forwards parameters under their own names, the parameters with no other use.
    """

    tokens: tuple[Hashable, ...]
    places: tuple[Place, ...]  # of each token
    attributes: tuple[str, ...]
    methods: tuple[str, ...]
    forwarded: tuple[frozenset[str], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Code) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)


def of_method(kind: type, name: str, limit: int | None = None) -> Code:
    """The code of a method of a class.

    Raises:
        NoSource: the source is not available.
        TooLong: it has more than `limit` tokens, with those of the functions that it calls.
    """
    return _read(plain(inspect.getattr_static(kind, name)), kind, limit)


def of_function(function: Any, limit: int | None = None) -> Code:
    """The code of a function. Raises the same errors as `of_method`."""
    return _read(function, None, limit)


def plain(function: Any) -> Any:
    """The function inside known wrappers of transformers, which do not change the result; others unchanged."""
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
    return Code(tokens, places, tuple(reader.attributes), tuple(reader.methods), tuple(reader.forwarded))


def tree_of(function: FunctionType) -> tuple[ast.FunctionDef, int]:
    """The syntax tree of a function, with line numbers relative to its `def`, and the line of the `def` in its file.

    Raises:
        NoSource: the source is not available.
    """
    parsed = _parsed(function.__code__)
    return parsed.tree, parsed.line


def parameters(function: FunctionType) -> tuple[str, ...]:
    """The names of all parameters with `*args` and `**kwargs`, in the order of `co_varnames`."""
    return _parameters(function.__code__)


def _parameters(code: CodeType) -> tuple[str, ...]:
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]


def shared(code: Code, other: Code) -> float:
    """The share of tokens that two functions have in common before and after their first difference."""
    longest, shortest = max(len(code.tokens), len(other.tokens)), min(len(code.tokens), len(other.tokens))
    before = _common(code.tokens, other.tokens)
    after = _common(code.tokens[::-1], other.tokens[::-1])
    return min(before + after, shortest) / longest


def difference(code: Code, other: Code) -> str:
    """The first line in which a function differs from another: "in line 3: x = 2 * x"."""
    place = code.places[min(_common(code.tokens, other.tokens), len(code.places) - 1)]
    of = f" of {place.function}" if place.function != code.places[0].function else ""
    text = place.text if len(place.text) <= 80 else f"{place.text[:77]}..."
    return f"in line {place.line}{of}: {text}"


def _common(tokens: Sequence[Hashable], others: Sequence[Hashable]) -> int:
    """The length of the common prefix."""
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
        self.forwarded: list[frozenset[str]] = []

    def function(self, function: FunctionType, is_method: bool = True) -> None:
        """Adds the tokens of a function, or the number of one that was added before."""
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
        self.module = names[0] if is_method and names else None  # mostly "self"
        self.variables: dict[str, int] = {}
        self.forwarded = parsed.forwarded - {self.module}
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
        """Adds the variable numbers of all parameters that are not just forwarded."""
        for position, each in enumerate(given):
            if each and each.arg not in self.forwarded:
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
        """Adds the tokens of a field of a tree."""
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
        if len(statements) > 1 and _returns_assigned(*statements[-2:]):
            last: Any = statements[-2]
            statements[-2:] = [ast.copy_location(ast.Return(last.value), last)]
        for statement in statements:
            self.node(statement)
        self.token("end")  # not their number before them: the first difference is then in a statement

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
        forwarded = frozenset(filter(None, map(self.own_name, node.keywords))) & self.forwarded
        keywords = [keyword for keyword in node.keywords if self.own_name(keyword) not in forwarded]
        self.token("call", len(node.args), len(keywords), bool(forwarded))
        if forwarded:
            self.reader.forwarded.append(forwarded)
        self.node(node.func)
        self.node(node.args)
        function = self.called(node.func)
        names = parameters(function) if function else ()
        for keyword in keywords:
            # A parameter of a function that is replaced by its tokens is identified by position.
            self.token("keyword", names.index(keyword.arg) if keyword.arg in names else keyword.arg)
            self.node(keyword.value)

    def own_name(self, keyword: ast.keyword) -> str | None:
        return _own_name(keyword, self.tree.args.kwarg)

    def called(self, node: ast.expr) -> FunctionType | None:
        """The called function, if it is replaced by its tokens."""
        if isinstance(node, ast.Attribute) and self.is_module(node.value):
            return self.method(node.attr)[0]
        value = self.known(node)
        return value if _is_inlined(value) else None

    def is_module(self, node: ast.expr) -> bool:
        return self.module is not None and isinstance(node, ast.Name) and node.id == self.module

    def method(self, name: str) -> tuple[FunctionType | None, bool]:
        """The function of this name in the module's class, or None, and False for a static method."""
        value: Any = inspect.getattr_static(self.reader.kind, name, None)
        is_static = isinstance(value, staticmethod)
        function = value.__func__ if is_static else value
        return function if _is_inlined(function) else None, not is_static

    def attribute(self, name: str) -> None:
        """Adds an attribute of the module itself."""
        method, gets_module = self.method(name)
        if method:
            self.reader.methods[name] = None
            self.token("method" if gets_module else "static method")
            self.reader.function(method, gets_module)
        elif name in _COMMON_ATTRIBUTES or hasattr(self.reader.kind, name):
            self.token("member", name)  # such as a property
        else:
            self.token("attribute", self.reader.attributes.setdefault(name, len(self.reader.attributes)))

    def known(self, node: ast.expr) -> Any:
        """The value of a global name or of an attribute of a Python module; otherwise _UNKNOWN."""
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
        elif _is_inlined(value):
            self.reader.function(value, is_method=False)
        else:
            self.token("object", id(value))


_UNKNOWN = object()


def _is_inlined(value: Any) -> bool:
    """True for a function with source that is not part of torch or of Python's library."""
    if not isinstance(value, FunctionType) or (value.__module__ or "").partition(".")[0] in _LIBRARIES:
        return False
    try:
        return bool(_parsed(value.__code__))
    except NoSource:
        return False


_LIBRARIES = frozenset({"torch", *sys.stdlib_module_names} - {"__main__"})


def _is_string(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)


def _returns_assigned(first: ast.stmt, second: ast.stmt) -> bool:
    """True for `name = …` followed by `return name`."""
    if not isinstance(second, ast.Return) or not isinstance(second.value, ast.Name):
        return False
    targets = first.targets if isinstance(first, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == second.value.id


def _stored(tree: ast.AST) -> Iterator[str]:
    """The names that a tree binds, including comprehensions and lambdas."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _is_super(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_call and not (node.args or node.keywords)  # type: ignore[attr-defined]


def _own_name(keyword: ast.keyword, stars: ast.arg | None) -> str | None:
    """x for `x=x`, and for `**x` if x is the function's own `**` parameter."""
    value = keyword.value
    if not isinstance(value, ast.Name):
        return None
    is_own = keyword.arg == value.id or (keyword.arg is None and stars is not None and stars.arg == value.id)
    return value.id if is_own else None


def _forwarded(tree: ast.FunctionDef, parameters: frozenset[str]) -> frozenset[str]:
    """The parameters that are only forwarded under their own names, with unused ones; empty if none is forwarded."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [_own_name(keyword, tree.args.kwarg) for call in calls for keyword in call.keywords]
    counts = Counter(name for name in names if name in parameters)
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    positional = tree.args.vararg.arg if tree.args.vararg else None
    only = frozenset(name for name in parameters if counts[name] == uses[name] and name != positional)
    return only if any(counts[name] for name in only) else frozenset()


@dataclass(frozen=True)
class _Parsed:
    """The parsed source of a function."""

    tree: ast.FunctionDef
    lines: list[str]  # from its `def` on
    own: frozenset[str]  # names of local variables
    forwarded: frozenset[str]
    line: int  # of its `def` in the file


@functools.lru_cache(4096)
def _parsed(code: CodeType) -> _Parsed:
    missing = NoSource(f"the source of its {code.co_name} is not to be found")
    # Not inspect.getsource, which searches all Python modules for the one that contains the code.
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
    return _Parsed(tree, lines, names, _forwarded(tree, frozenset(_parameters(code))), line)


def _in_file(code: CodeType, text: str) -> CodeType | None:
    """The equal code in the file, which may have another name: torch 2.15 renames decorated functions."""
    found = _compiled(text)
    if code in found:
        return code
    alike = (x for x in found if x.co_code == code.co_code and x.co_firstlineno == code.co_firstlineno)
    return next((x for x in alike if x.replace(co_name=code.co_name) == code), None)


@functools.lru_cache(64)
def _compiled(text: str) -> frozenset[CodeType]:
    """The compiled functions of a file's present text, which may differ from the imported ones."""
    found = {compile(text, "", "exec", dont_inherit=True)}
    within = found
    while within:
        within = {each for code in within for each in code.co_consts if isinstance(each, CodeType)}
        found |= within
    return frozenset(found)
