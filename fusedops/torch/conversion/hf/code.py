"""Inspects functions, and copies them with other global variables.

A counterpart that changes a single step of a long `forward` runs a copy of the original's code, in which one global
name has another value. The original modules do not change, since unconverted models share them.
"""

from __future__ import annotations

import ast
import copy
import dis
import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from fusedops.conversion import UnknownClass
from fusedops.torch.conversion import source
from fusedops.torch.nn.plans import may_have_plan, prepared


def steps(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a function and of its nested functions."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from steps(constant)


def without_no_grad(function: Any) -> tuple[Any, Callable[[FunctionType], Any]]:
    """(function without `@torch.no_grad()`, that decorator); (function, identity) if it is not decorated so."""
    # Equality, not identity: torch 2.15 copies the wrapper's code for each decorated function.
    if isinstance(function, FunctionType) and function.__code__ == _decorated.__code__:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        makes_context = cells["ctx_factory"].cell_contents if "ctx_factory" in cells else None
        context: Any = getattr(makes_context, "__self__", None)
        if type(context) is torch.no_grad:  # torch's other contexts have the same code
            return function.__wrapped__, torch.no_grad()  # type: ignore[attr-defined]
    return function, lambda same: same


@torch.no_grad()
def _decorated() -> None:
    pass


def with_global(function: FunctionType, name: str, value: Any) -> FunctionType:
    """A copy of the function with another value for one of its global names.

    The other globals are copied now: later changes in the function's module have no effect. `__name__` is left out,
    because torch.compile would use the globals of the module that has that name.

    Raises:
        UnknownClass: the function's result depends on its globals not being a copy.
    """
    for step in steps(function.__code__):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise UnknownClass("its forward sets a global variable, so that functions in it are not replaced")
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "__name__":
            raise UnknownClass("its forward reads __name__, so that functions in it are not replaced")
    names = {**function.__globals__, name: value}
    names.pop("__name__", None)
    return copied(function, names=names)


def with_parameters(function: FunctionType, other: FunctionType) -> FunctionType:
    """A copy of the function whose first parameters have the names of another function's parameters."""
    code, names = function.__code__, other.__code__.co_varnames[: other.__code__.co_argcount]
    count = min(len(names), code.co_argcount)
    variables = (name if name not in names else f"_{name}" for name in code.co_varnames[count:])
    names = (*names[:count], *variables)
    if names == code.co_varnames:
        return function
    return copied(function, code.replace(co_varnames=names))


def with_prepared_input(function: FunctionType, original: FunctionType) -> FunctionType:
    """A forward that calls `function` with its first argument prepared by the parallel plan of the layers within it.

    `function` itself, unless layers and the argument's shape are all that `original` uses the argument for. The layers
    of a changed copy of `original` are its own.
    """
    try:
        layers = layers_of_input(original)
    except source.NoSource:
        return function
    if len(layers) < 2:
        return function

    def forward(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        first = getattr(self, layers[0])
        if not isinstance(first, torch.nn.Module) or not may_have_plan(first):  # a method, or the fast test
            return function(self, x, *args, **kwargs)
        called = [getattr(self, name) for name in layers]
        if all(isinstance(each, torch.nn.Module) for each in called):
            x = prepared(x, *called)
        return function(self, x, *args, **kwargs)

    made = with_parameters(forward, function)  # type: ignore[arg-type]
    made.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return made


def layers_of_input(function: FunctionType) -> tuple[str, ...]:
    """The attributes that a forward calls with nothing but its first argument; none if it has other uses for this than
    its shape."""
    tree, _ = source.tree_of(function)
    if len(tree.args.args) < 2:
        return ()
    model, x = (each.arg for each in tree.args.args[:2])
    layers: dict[str, None] = {}
    others = 0
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr=name), args=[ast.Name(id=used)], keywords=[]
            ) if (owner, used) == (model, x):
                layers[name] = None
                others -= 1
            case ast.Attribute(value=ast.Name(id=used), attr="shape") if used == x:
                others -= 1
            case ast.Name(id=used) if used == x:
                others += 1
    return () if others else tuple(layers)


def copied(
    function: FunctionType,
    code: CodeType | None = None,
    names: dict[str, Any] | None = None,
    closure: tuple[CellType, ...] | None = None,
) -> FunctionType:
    """A copy of a function with other code, global names or closure."""
    names, closure = names or function.__globals__, closure or function.__closure__
    made = FunctionType(code or function.__code__, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__, made.__annotations__ = function.__kwdefaults__, function.__annotations__
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return made


def compiled(tree: ast.FunctionDef, line: int, like: FunctionType) -> FunctionType:
    """Compiles a tree to a function like another, with line numbers of its file."""
    tree = copy.deepcopy(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
    tree.returns, tree.args.defaults, tree.args.kw_defaults = None, [], [None] * len(tree.args.kwonlyargs)
    ast.increment_lineno(tree, line - 1)
    module = compile(ast.fix_missing_locations(ast.Module([tree], [])), like.__code__.co_filename, "exec")
    (code,) = (each for each in module.co_consts if isinstance(each, CodeType))
    made = copied(like, code)
    made.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
    return made
