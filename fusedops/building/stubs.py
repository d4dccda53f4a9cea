"""functions.pyi of all packages, for editors and type checkers.

The functions are defined while a package is imported, which no checker sees. Their types need neither a compiled
library nor a framework.
"""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusedops import functions
from fusedops.loading import FRAMEWORKS

PACKAGE = Path(functions.__file__).parents[1]
_TENSORS = {  # the framework's definitions of the type names in fusedops/functions/common.py
    "torch": "from torch import Tensor\nTensorLike = Tensor\nVariable = Tensor",
    "tf": "from fusedops.tf.tensors import Tensor, TensorLike, Variable",
    "jax": "from fusedops.jax.tensors import Tensor, TensorLike, Variable",
}
_HEAD = '''"""The types of the public functions of fusedops.{framework}, from fusedops/functions/."""
from collections.abc import Sequence
from typing import Any
from fusedops.expressions.function import Elementwise
from fusedops.functions.common import Activation, Approximation, Reduction, Scaling
{tensors}
__all__ = {names}
'''


class _Annotation(str):
    """A string that a signature shows without quotes."""

    __repr__ = str.__str__


def stub(framework: str) -> str:
    """The text of functions.pyi."""
    head = _HEAD.format(framework=framework, tensors=_TENSORS[framework], names=functions.__all__)
    return head + "".join(_definition(function, framework) for function in functions.PUBLIC)


def _definition(function: Callable[..., Any], framework: str) -> str:
    signature = functions.signature(function, framework)
    parameters = [p.replace(annotation=_Annotation(p.annotation)) for p in signature.parameters.values()]
    signature = signature.replace(parameters=parameters, return_annotation=_Annotation(signature.return_annotation))
    source = Path(inspect.getfile(function)).name
    description = textwrap.indent(f'"""{functions.description(function, framework)}\n"""', "    ")
    return f"\n# fusedops/functions/{source}\ndef {function.__name__}{signature}:\n{description}\n"


def files(package: Path) -> dict[Path, str]:
    """The files of a package with their texts."""
    return {package / framework / "functions.pyi": stub(framework) for framework in FRAMEWORKS}


def write(package: Path) -> None:
    for path, text in files(package).items():
        if path.exists() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")  # an atomic replacement: a type checker may be reading
        new.write_text(text)
        new.replace(path)
