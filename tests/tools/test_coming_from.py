"""docs/coming-from.md: the functions, layers and arguments that it names exist."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from tests.helpers.running import ROOT

TEXT = (ROOT / "docs" / "coming-from.md").read_text()
TABLES = [re.findall(r"^\| (.+?) \| (.+) \|$", table, re.M) for table in re.findall(r"(?:^\|.*\n)+", TEXT, re.M)]
PACKAGES = {
    "torch": {"fo": "fusedops.torch", "fnn": "fusedops.torch.nn"},
    "tf": {"fo": "fusedops.tf", "fk": "fusedops.tf.keras"},
}


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_calls(package):
    """Each call in the tables binds to the signature of its function."""
    framework = package.__name__.partition(".")[2]
    count = 0
    for code in codes(TEXT):
        first = code.partition(".")[0]
        if first not in PACKAGES[framework] or "..." in code:
            continue
        node = ast.parse(code, mode="eval").body
        call = node if isinstance(node, ast.Call) else None
        member = eval(ast.unparse(call.func if call else node), dict(names(package)))
        if call:
            inspect.signature(member).bind(*call.args, **{word.arg: word.value for word in call.keywords})
        count += 1
    assert count > 10


def names(package):
    if package.__name__ == "fusedops.torch":
        return {"fo": package, "fnn": package.nn}
    return {"fo": package, "fk": package.keras}


@pytest.mark.parametrize("name", ["attention", "attention_varlen"])
def test_arguments(package, name):
    """A table whose heading is a function lists arguments of it."""
    parameters = inspect.signature(getattr(package, name)).parameters
    found = [table for table in TABLES if table[0][1] == f"`fo.{name}`"]
    assert found
    for _, cell in (entry for table in found for entry in table[2:]):
        for code in codes(cell):
            assert code.partition("=")[0] in parameters, code
