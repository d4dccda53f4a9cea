"""`make stubs`: the files of the package that are written from others, for readers, editors and type checkers.

fusedops/functions/operators.py   the types of the operators, of the table in the compiled library
fusedops/torch/functions.py       the public functions for each framework, of those in fusedops/functions/
fusedops/tf/functions.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from fusedops import functions, loading
from fusedops.declarations import Attribute, Input, Operator

PACKAGE = Path(functions.__file__).parents[1]

# Where names of fusedops/functions/common.py come from instead.
_OWN = {
    "torch": {
        "Tensor": "from torch import Tensor",
        "TensorLike": "from torch import Tensor as TensorLike",
        "Variable": "from torch import Tensor as Variable",
        "ops": "from fusedops.torch.operators import OPERATORS as ops",
        "renamed": "from fusedops.torch.errors import renamed",
        "may_need_gradient": "from fusedops.torch.recording import may_need_gradient",
        "seed_of": "from fusedops.torch.randomness import seed_of",
        "check_whole_sequences": "from fusedops.torch.sequences import check_whole_sequences",
        "own": "from fusedops.torch import expressions as own",
    },
    "tf": {
        "Tensor": "from fusedops.tf.tensors import Tensor",
        "TensorLike": "from fusedops.tf.tensors import TensorLike",
        "Variable": "from fusedops.tf.tensors import Variable",
        "ops": "from fusedops.tf.operators import OPERATORS as ops",
        "own": "from fusedops.tf import expressions as own",
        "may_need_gradient": "from fusedops.tf.recording import may_need_gradient",
        "seed_of": "from fusedops.tf.randomness import seed_of",
        "check_whole_sequences": "from fusedops.tf.sequences import check_whole_sequences",
        **{name: f"from fusedops.tf.naming import {name}" for name in ("are_symbolic", "call_symbolic", "named")},
    },
}

_NAMED = """\
if name is not None:
    return named(name, {function}, {arguments})
try:
{body}
except TypeError:  # asked only now, so that other calls do not wait for the answer
    if not are_symbolic({parameters}):
        raise
return call_symbolic({function}, None, {arguments})
"""


def public_functions(framework: str) -> str:
    """The text of functions.py."""
    imports, lines = {"from __future__ import annotations"}, []
    for function in functions.PUBLIC:
        head = _signature(function, framework)
        text = f"def {function.__name__}{head}:\n{textwrap.indent(_body(function, framework), '    ')}"
        lines.append(text)
        annotations = [head.return_annotation, *(p.annotation for p in head.parameters.values())]
        names = set.union(*map(_names, (text, *annotations)))
        imports.update(filter(None, (_import(name, function, framework) for name in names)))
    title = f'"""The public functions of fusedops.{framework}; `make stubs` writes them, from fusedops/functions/."""'
    return _formatted("\n".join([title, *sorted(imports), f"__all__ = {functions.__all__}", *lines]))


def _signature(function: Callable[..., Any], framework: str) -> inspect.Signature:
    """The function's own; TensorFlow's functions take all that is made a tensor of, and a name for its operations."""
    own = inspect.signature(function)
    if framework != "tf" or function.__name__ not in functions.OF_TENSORS:
        return own
    parameters = [
        p.replace(annotation=re.sub(r"\bTensor\b", "TensorLike", p.annotation)) for p in own.parameters.values()
    ]
    name = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    return own.replace(parameters=[*parameters, name])


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _body(function: FunctionType, framework: str) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef)
    description, first, *_ = definition.body
    lines = source.splitlines()
    described = textwrap.dedent("\n".join(lines[description.lineno - 1 : description.end_lineno]))
    body = textwrap.dedent("\n".join(lines[first.lineno - 1 :]))
    if framework == "tf" and function.__name__ in functions.OF_TENSORS:
        parameters = inspect.signature(function).parameters.values()
        body = _NAMED.format(
            function=function.__name__,
            body=textwrap.indent(body, "    "),
            parameters=", ".join(p.name for p in parameters),
            arguments=", ".join(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters),
        )
    return f"{described}\n{body}\n"


def _import(name: str, function: FunctionType, framework: str) -> str | None:
    """Where a function has the name from; None for what is built in or its own."""
    if name in _OWN[framework]:
        return _OWN[framework][name]
    value: Any = function.__globals__.get(name)
    if value is None or value is function:
        return None
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module = getattr(value, "__module__", None)
    if value is Any:
        return "from typing import Any"
    return f"from {module if module not in (None, 'typing') else 'fusedops.functions.common'} import {name}"


def operators() -> str:
    """The text of operators.py."""
    built = next(framework.name for framework in loading.FRAMEWORKS.values() if not loading.fault(framework))
    library = importlib.import_module(f"fusedops.{built}.library")
    rows = [row for row in library.TABLE.values() if row.name in library.BUILT_IN]
    return _formatted("\n".join(_operators(rows)))


def _operators(rows: Sequence[Operator]) -> Iterator[str]:
    yield '"""The types of the operators; `make stubs` writes them, from the table of the compiled library."""'
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
    arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename=functions.py", "-"]
    return subprocess.run(arguments, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


FILES = {
    PACKAGE / "functions/operators.py": operators,
    PACKAGE / "torch/functions.py": lambda: public_functions("torch"),
    PACKAGE / "tf/functions.py": lambda: public_functions("tf"),
}


def main() -> None:
    for path, text in {path: make() for path, make in FILES.items()}.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
