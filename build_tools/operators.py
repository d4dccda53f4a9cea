"""Writes fusedops/functions/operators.pyi, the types of the operators, from the compiled library's table."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusedops import functions, loading
from fusedops.declarations import Attribute, Input

FILE = Path(functions.__file__).with_name("operators.pyi")


def write() -> None:
    """Writes the file if it is older than the library or this module: reading the table imports a framework."""
    built = _built()
    if not built:
        return
    newest = max(source.stat().st_mtime for source in (built.folder / built.files[0], Path(__file__)))
    if not (FILE.exists() and FILE.stat().st_mtime >= newest):
        FILE.write_text(text())


def _built() -> loading.Framework | None:
    """The first framework whose library can be loaded here."""
    return next((framework for framework in loading.FRAMEWORKS.values() if not loading.fault(framework)), None)


def text() -> str:
    """The text of operators.pyi."""
    built = _built()
    assert built, "no library can be loaded"
    library = importlib.import_module(f"fusedops.{built.name}.library")
    return "\n".join(_lines(library)) + "\n"


def _lines(library: Any) -> Iterator[str]:
    yield '''"""The types of the operators; the build writes them, from the table of the compiled library."""
from collections.abc import Sequence
from typing import Any, Protocol
Tensor = Any
class Operators(Protocol):
    """The functions that fusedops/torch/operators.py and fusedops/tf/operators.py make, one for each operator.

    A call runs the function that fusedops/torch/calls.py or fusedops/tf/calls.py generates; then `call` in
    torch_binding/call.cpp, below torch_autograd/kernel.cpp, or tf_binding/kernel.cc; then the operator's `.cpu` or
    `.cuda`, which core_cuda/ops/<family>/<operator>.cpp names. docs/architecture.md draws it.
    """'''
    for name in sorted(library.BUILT_IN):
        operator = library.TABLE[name]
        result = ", ".join(["Tensor"] * len(operator.outputs)) or "Any"
        options = ["*", *map(_option, operator.attributes)] if operator.attributes else []
        parameters = ", ".join(["self", *map(_parameter, operator.inputs), *options])
        yield f"    def {name}({parameters}) -> {result if len(operator.outputs) <= 1 else f'tuple[{result}]'}: ..."


def _parameter(x: Input) -> str:
    types = {"scalar": "float | Tensor", "optional": "Tensor | None", "list": "Sequence[Tensor]"}
    return f"{x.name}: {types.get(x.kind, 'Tensor')}"


def _option(x: Attribute) -> str:
    default = tuple(x.default) if x.type == "floats" else x.default
    return f"{x.name}: {'Sequence[float]' if x.type == 'floats' else x.type} = {default!r}"
