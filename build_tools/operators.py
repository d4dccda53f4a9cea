"""`make operators`: writes fusedops/functions/operators.py, the operators' types, from the compiled library's table."""

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
    operators = [operator for operator in library.TABLE.values() if operator.name in library.BUILT_IN]
    return _formatted("\n".join(_protocol(operators)))


def _protocol(operators: Sequence[Operator]) -> Iterator[str]:
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
    for operator in operators:
        result = ", ".join(["Tensor"] * len(operator.outputs)) or "None"
        result = result if len(operator.outputs) <= 1 else f"tuple[{result}]"
        options = ["*", *map(_option, operator.attributes)] if operator.attributes else []
        parameters = ", ".join(["self", *map(_parameter, operator.inputs), *options])
        yield f"    def {operator.name}({parameters}) -> {result}: ..."


def _parameter(x: Input) -> str:
    types = {"scalar": "float | Tensor", "optional": "Tensor | None", "list": "Sequence[Tensor]"}
    return f"{x.name}: {types.get(x.kind, 'Tensor')}"


def _option(x: Attribute) -> str:
    default = tuple(x.default) if x.type == "floats" else x.default
    return f"{x.name}: {'Sequence[float]' if x.type == 'floats' else x.type} = {default!r}"


def _formatted(text: str) -> str:
    """The text as ruff formats it: imports sorted, annotations unquoted, long lines wrapped."""
    return _ruff("format", text=_ruff("check", "--select=I,UP", "--fix-only", text=text))


def _ruff(*command: str, text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename=operators.py", "-"]
    return subprocess.run(arguments, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    FILE.write_text(text())
