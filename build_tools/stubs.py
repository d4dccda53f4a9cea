"""`make stubs`: what type checkers and editors know of the public functions, in either framework."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import FunctionType

from fusedops import functions
from fusedops.functions import common
from fusedops.functions.signatures import signature

FRAMEWORKS = ("torch", "tf")


def path(framework: str) -> Path:
    return Path(functions.__file__).parents[1] / framework / "functions.pyi"


def stub(framework: str) -> str:
    """The text of functions.pyi."""
    lines, imports = ["ops: SimpleNamespace"], {"from types import SimpleNamespace"}
    for function in functions.PUBLIC:
        head = signature(function, framework)
        lines.append(f"def {function.__name__}{head}: ...")
        for annotation in (head.return_annotation, *(p.annotation for p in head.parameters.values())):
            imports.update(filter(None, (_import(name, function, framework) for name in _names(annotation))))
    title = f"# Written by `make stubs`, from fusedops/functions/: the functions of fusedops.{framework}."
    text = "\n".join([title, *imports, f"__all__ = {functions.__all__}", *lines])
    return _ruff("format", text=_ruff("check", "--select=I,UP", "--fix-only", text=text))


def _ruff(*command: str, text: str) -> str:
    """Imports in order, annotations without quotes; lines of the length of all others."""
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename=functions.pyi", "-"]
    return subprocess.run(arguments, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def _names(annotation: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}


def _import(name: str, function: FunctionType, framework: str) -> str | None:
    """Where an annotation has the name from; None for what is built in."""
    if name in ("Tensor", "TensorLike"):
        module = "torch" if framework == "torch" else "fusedops.tf.tensors"
    elif name in vars(common):
        module = common.__name__
    elif name in function.__globals__:
        module = function.__globals__[name].__module__
    else:
        return None
    return f"from {module} import {name}"


def main() -> None:
    for framework in FRAMEWORKS:
        path(framework).write_text(stub(framework))


if __name__ == "__main__":
    main()
