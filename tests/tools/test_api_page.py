"""docs/api.md is what the docstrings give, and the examples in them run."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

from build_tools import reference
from tests.helpers.frameworks import FRAMEWORKS, installed

MODULES = {"torch": "torch", "tf": "tensorflow"}
TITLES = {"torch": ("PyTorch", "Example"), "tf": ("TensorFlow", "Example")}


def described(package):
    """The public functions of a package, and its layers."""
    layers = package.nn if package.__name__ == "fusedops.torch" else package.keras
    return {
        **{name: getattr(package, name) for name in package.functions.__all__},
        **{name: getattr(layers, name) for name in layers.__all__ if inspect.isclass(getattr(layers, name))},
    }


def test_the_page_is_up_to_date():
    if not all(map(installed, FRAMEWORKS)):
        pytest.skip("the page describes both frameworks")
    assert reference.PAGE.read_text() == reference.page(), "Run: make reference"


def test_examples(package):
    """Each function and layer has one in this framework, and it prints what it says."""
    framework = package.__name__.partition(".")[2]
    names = {"fo": package, framework: importlib.import_module(MODULES[framework])}
    if framework == "torch":
        names["fnn"] = package.nn
    else:
        names |= {"fk": package.keras, "keras": importlib.import_module("keras")}
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    for name, member in described(package).items():
        sections = reference.SECTION.findall(inspect.getdoc(member) + "\n")
        code = "".join(body for title, body in sections if title in TITLES[framework])
        example = parser.get_doctest(code, dict(names), f"{package.__name__}.{name}", None, None)
        assert example.examples, f"{name} has no example"
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0
