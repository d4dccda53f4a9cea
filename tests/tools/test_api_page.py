"""docs/api.md is what the docstrings give, and the examples in them run."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import fusedops
from build_tools import reference
from tests.helpers.frameworks import FRAMEWORKS, installed

MODULES = {"torch": "torch", "tf": "tensorflow"}
TITLES = {"torch": ("PyTorch", "Example"), "tf": ("TensorFlow", "Example")}


def described(package):
    """The public functions of a package, its layers and its optimizers."""
    in_torch = package.__name__ == "fusedops.torch"
    layers, optimizers = (package.nn, package.optim) if in_torch else (package.keras, package.keras.optimizers)
    return {
        **{name: getattr(package, name) for name in package.functions.__all__},
        **{name: getattr(layers, name) for name in layers.__all__ if inspect.isclass(getattr(layers, name))},
        **{name: getattr(optimizers, name) for name in optimizers.__all__},
    }


def test_the_page_is_up_to_date():
    if not all(map(installed, FRAMEWORKS)):
        pytest.skip("the page describes both frameworks")
    assert reference.PAGE.read_text() == reference.page(), "Run: make reference"


def test_examples(package):
    """Each function and layer has one in this framework, and it prints what it says."""
    framework = package.__name__.partition(".")[2]
    names = {"fo": package, "fusedops": fusedops, framework: importlib.import_module(MODULES[framework])}
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
