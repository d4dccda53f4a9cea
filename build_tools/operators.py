"""`make operators`: fusedops/functions/operators.py, the types of the operators, from the compiled library's table."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fusedops import functions, loading
from fusedops.declarations import Attribute, Input, Operator

FILE = Path(functions.__file__).with_name("operators.py")


def text() -> str:
    """The text of operators.py."""
    built = next(framework.name for framework in loading.FRAMEWORKS.values() if not loading.fault(framework))
    library = importlib.import_module(f"fusedops.{built}.library")
    rows = [row for row in library.TABLE.values() if row.name in library.BUILT_IN]
    return _formatted("\n".join(_operators(rows)))


def _operators(rows: Sequence[Operator]) -> Iterator[str]:
    yield '"""The types of the operators; `make operators` writes them, from the table of the compiled library."""'
    yield "from __future__ import annotations"
    yield "from collections.abc import Sequence"
    yield "from typing import Any, Protocol"
    yield "Tensor = Any"
    yield '''
class Operators(Protocol):
    """The functions that fusedops/torch/operators.py and fusedops/tf/operators.py make of the table, one for each row.

    A call runs the function that fusedops/torch/calls.py or fusedops/tf/calls.py generates from the row; then `call` in
    torch_binding/call.cpp, below torch_autograd/kernel.cpp, or tf_binding/kernel.cc; then the row's rule and its `.cpu`
    or `.cuda`, which core_cuda/ops/<family>/<operator>.cpp names. docs/architecture.md draws it.
    """
'''
    for row in rows:
        result = ", ".join(["Tensor"] * len(row.outputs)) or "None"
        options = ["*", *map(_option, row.attributes)] if row.attributes else []
        parameters = ", ".join(["self", *map(_parameter, row.inputs), *options])
        yield f"    def {row.name}({parameters}) -> {result if len(row.outputs) <= 1 else f'tuple[{result}]'}: ..."


def _parameter(x: Input) -> str:
    types = {"scalar": "float | Tensor", "optional": "Tensor | None", "list": "Sequence[Tensor]"}
    return f"{x.name}: {types.get(x.kind, 'Tensor')}"


def _option(x: Attribute) -> str:
    default = tuple(x.default) if x.type == "floats" else x.default
    return f"{x.name}: {'Sequence[float]' if x.type == 'floats' else x.type} = {default!r}"


def _formatted(text: str) -> str:
    """Imports in order, annotations without quotes; lines of the length of all others."""
    return _ruff("format", text=_ruff("check", "--select=I,UP", "--fix-only", text=text))


def _ruff(*command: str, text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename=operators.py", "-"]
    return subprocess.run(arguments, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    FILE.write_text(text())
