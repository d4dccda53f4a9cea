"""The public functions: one signature, one description and one body each, for all frameworks.

Their bodies call `ops`, a framework's set of operators. `functions.py` of either package gives `define` the framework's
own names for those of `common.py`; `define` makes the functions that users call.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from fusedops import loading
from fusedops.functions import (
    accumulation,
    activations,
    attention,
    elementwise,
    experts,
    expressions,
    loss,
    normalization,
    products,
    rotary,
)

FAMILIES = (
    accumulation,
    activations,
    attention,
    elementwise,
    experts,
    loss,
    normalization,
    expressions,
    products,
    rotary,
)
PUBLIC: tuple[Any, ...] = tuple(
    sorted(
        (
            member
            for family in FAMILIES
            for member in vars(family).values()
            if inspect.isfunction(member) and member.__module__ == family.__name__
        ),
        key=lambda function: function.__name__,
    )
)
_NAMED = {function.__name__: function for function in PUBLIC}
__all__ = [*_NAMED]
# Functions from tensors to tensors. The others make functions, or are called for their effect.
_OTHERS = {expressions.__name__, accumulation.__name__}
OF_TENSORS = [function.__name__ for function in PUBLIC if function.__module__ not in _OTHERS]

NAME = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
_WIDTH = 116  # of a description without its indentation
_TITLES = "|".join(framework.title for framework in loading.FRAMEWORKS.values())
_SHARED = re.compile(r"^(?P<indent> *)(?P<names>\w+(?:, \w+)*): as in `(?P<function>\w+)`\.\n", re.M)
_ERRORS = """\
    RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the wrong
        shape or dtype, or is out of range.
"""


for _function in PUBLIC:  # hides the arguments that a function takes only to refuse them
    _plain = inspect.signature(_function)
    _taken = [p for p in _plain.parameters.values() if p.annotation != "Refused"]
    _function.__signature__ = _plain.replace(parameters=_taken)
    _function.__annotations__ = {x: kind for x, kind in _function.__annotations__.items() if kind != "Refused"}


def define(module: dict[str, Any]) -> list[str]:
    """Defines the public functions in a framework's module, given as its `__dict__`, and returns their names.

    Each shares the code of the function here, so that tracebacks and `inspect.getsource` show this package. Its globals
    are the framework's module, since torch's compiler looks globals up in the module that they name. The module gets
    the names of the families' modules, unless it has its own, as for names of common.py.
    """
    package = module["__package__"]
    shared = {name: value for family in FAMILIES for name, value in vars(family).items() if not name.startswith("__")}
    module.update({**shared, **module})
    for function in PUBLIC:
        copy = FunctionType(function.__code__, module, function.__name__, function.__defaults__)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__signature__ = function.__signature__  # type: ignore[attr-defined]
        copy.__annotations__ = function.__annotations__
        copy.__doc__ = description(function, package.rpartition(".")[2])
        copy.__module__ = package  # pickle finds it by its module
        module[function.__name__] = copy
    return [*__all__]


def signature(function: Callable[..., Any], framework: str) -> inspect.Signature:
    """The function's signature in a framework. TensorFlow's functions take a name for their operations, and convert
    their arguments to tensors."""
    plain = inspect.signature(function)
    if framework != "tf" or function.__name__ not in OF_TENSORS:
        return plain
    parameters = [
        p.replace(annotation=re.sub(r"\bTensor\b", "TensorLike", p.annotation)) for p in plain.parameters.values()
    ]
    return plain.replace(parameters=[*parameters, NAME])


def whole_description(function: Callable[..., Any]) -> str | None:
    """The function's docstring with shared text inserted.

    `eps, weight: as in `rms_norm`.` stands for the entries of these arguments there, and `Returns, Gradient: as in
    `rms_norm`.` for these sections. The errors that a function of tensors raises for its arguments need no entry.
    """
    if function.__doc__ is None:  # python -OO
        return None

    def written_out(shared: re.Match[str]) -> str:
        described, indent = whole_description(_NAMED[shared["function"]]) or "", shared["indent"]

        def entry(name: str) -> str:
            found = re.search(rf"^{indent}{name}:.*\n(?:{indent} +.*\n)*", described, re.M)
            assert found, f"{shared['function']} has no entry {name}"
            return found[0]

        return ("" if indent else "\n").join(map(entry, shared["names"].split(", ")))

    text = _SHARED.sub(written_out, f"{inspect.cleandoc(function.__doc__)}\n")
    if function.__name__ not in OF_TENSORS or _ERRORS.partition(":")[0] in text:
        return text
    if "\nRaises:\n" not in text:
        text = re.sub(rf"(?=^(?:{_TITLES}):\n)", "Raises:\n\n", text, count=1, flags=re.M)
    return text.replace("\nRaises:\n", f"\nRaises:\n{_ERRORS}", 1)


def description(function: Callable[..., Any], framework: str) -> str | None:
    """The function's description without the section and the errors of other frameworks."""
    text = whole_description(function)
    if text is None:
        return None
    own_title = loading.FRAMEWORKS[framework].title

    def of_framework(errors: re.Match[str]) -> str:
        """An entry of the section Raises, such as `RuntimeError (PyTorch), LookupError (TensorFlow): ...`."""
        kinds = re.search(rf"(\w[\w, ]*) \({own_title}\)", errors["kinds"])
        if kinds is None:
            return ""
        entry = f"    {kinds[1]}: {' '.join(errors['text'].split())}"
        return textwrap.fill(entry, _WIDTH, subsequent_indent=" " * 8) + "\n"

    text = re.sub(rf"^(?!{own_title})(?:{_TITLES}):\n(?:(?: .*)?\n)+", "", text, flags=re.M)
    entry = rf"^    (?P<kinds>\w[\w, ]* \((?:{_TITLES})\).*?):\s+(?P<text>.*\n(?:     .*\n)*)"
    return re.sub(entry, of_framework, text, flags=re.M).rstrip()
