"""Properties of a module's class, found in the syntax trees of its methods."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

_FRAMEWORKS = ("torch", "keras", "tensorflow")  # their own layers have none of these properties
_ROTATION = re.compile(r"\w*apply_\w*(rotary|rope)\w*|rotate_half|rotate_every_two|\w*apply_rotation\w*")
_ACTIVATION = re.compile(
    r"\w*(act|act_fn|activation|activation_fn|act_func|silu|swish|gelu|relu|nonlinearity)\d*|ACT2FN"
)


@dataclass(frozen=True)
class Code:
    has_gate: bool = False  # True if an activation's result is multiplied by another value
    has_rotation: bool = False
    added_then_called: tuple[str, ...] = ()  # attributes that are called with a sum


@functools.cache
def code_of(kind: type, forward: str) -> Code:
    """The properties of a class; the defaults if its source is unavailable.

    Args:
        kind: the class.
        forward: the name of the method that computes.
    """
    definition = _classes_of(kind.__module__).get(kind.__qualname__)
    if definition is None:
        return Code()
    methods = [node for node in definition.body if isinstance(node, ast.FunctionDef)]
    calls = {_name(node.func) for method in methods for node in ast.walk(method) if isinstance(node, ast.Call)}
    return Code(
        has_gate=any(map(_has_gate, methods)),
        has_rotation=any(_ROTATION.fullmatch(name) for name in calls),
        added_then_called=tuple(
            name for method in methods if method.name == forward for name in _called_with_sums(method)
        ),
    )


@functools.cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    """The class definitions in a module's source. `inspect.getsource` of a class would parse it again every time."""
    if module.partition(".")[0] in _FRAMEWORKS:
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _name(called: ast.expr) -> str:
    """The last name of a called expression: act_fn of self.act_fn(x); ACT2FN of ACT2FN[name](x)."""
    if isinstance(called, ast.Subscript):
        return _name(called.value)
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _has_gate(method: ast.FunctionDef) -> bool:
    activated: set[str] = set()

    def is_activated(value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return value.id in activated
        if not isinstance(value, ast.Call):
            return False
        is_cast = isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "float", "type_as")
        return is_activated(value.func.value) if is_cast else bool(_ACTIVATION.fullmatch(_name(value.func)))

    for node in _in_order(method):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(map(is_activated, sides)) and not any(isinstance(side, ast.Constant) for side in sides):
                return True
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            activated = activated | {name} if is_activated(node.value) else activated - {name}
    return False


def _called_with_sums(method: ast.FunctionDef) -> Iterator[str]:
    sums: set[str] = set()

    def is_sum(value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return value.id in sums
        return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)

    for node in _in_order(method):
        if isinstance(node, ast.Call) and node.args and is_sum(node.args[0]) and _is_own(node.func):
            yield _name(node.func)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            sums.add(node.target.id)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    sums = sums | {target.id} if is_sum(node.value) else sums - {target.id}


def _is_own(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, in post-order."""
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
    yield node
