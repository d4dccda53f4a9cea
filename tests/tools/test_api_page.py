"""docs/api.md lists every public name with its file, `make reference` describes each, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import fusedops
from build_tools import reference
from fusedops import functions
from tests.helpers.frameworks import BOTH, installed
from tests.helpers.running import ROOT

PAGE = ROOT / "docs" / "api.md"
MODULES = {"torch": "torch", "tf": "tensorflow"}
TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
OTHERS = {  # names that are neither functions of tensors nor classes
    "fusedops.show_config",
    *(f"fusedops.torch.{name}" for name in ("convert", "revert", "explain", "graphed", "load", "jit.load")),
    *(f"fusedops.tf.{name}" for name in ("keras.convert", "keras.revert", "library_path", "load")),
}


def described(package):
    """The public functions of a package, its layers and its optimizers, by their full names."""
    in_torch = package.__name__ == "fusedops.torch"
    modules = [package.nn, package.optim] if in_torch else [package.keras, package.keras.optimizers]
    members = {(package, name) for name in package.functions.__all__}
    members |= {
        (module, name) for module in modules for name in module.__all__ if inspect.isclass(getattr(module, name))
    }
    return {f"{module.__name__}.{name}": getattr(module, name) for module, name in members}


def is_of(package, name):
    """True if the package, or fusedops itself, has the name."""
    return name.startswith(f"{package.__name__}.") or name.count(".") == 1


def public(package):
    distributed = getattr(package, "distributed", None)
    others = {f"{distributed.__name__}.{name}" for name in distributed.__all__} if distributed else set()
    return {*described(package), *(name for name in OTHERS if is_of(package, name)), *others}


def listed(package):
    """The names of a package that the page lists, with the linked files."""
    short = {"fo": package.__name__, "fnn": "fusedops.torch.nn", "fk": "fusedops.tf.keras"}
    links = re.findall(r"\[`(\w+)\.([\w.]+)`\]\(\.\./([\w/]+\.py)\)", PAGE.read_text())
    full = {f"{short.get(first, first)}.{rest}": file for first, rest, file in links}
    return {
        name: file for name, file in full.items() if name.startswith(f"{package.__name__}.") or name.count(".") == 1
    }


def test_the_page_lists_every_public_name(package):
    assert listed(package).keys() == public(package)


def test_the_page_links_to_the_file_of_each(package):
    root = Path(fusedops.__file__).parents[1]
    for name, file in listed(package).items():
        member = fusedops
        for part in name.split(".")[1:]:
            member = getattr(member, part)
        assert Path(inspect.getsourcefile(inspect.unwrap(member))) == root / file, name


def test_every_public_name_has_an_entry_in_the_reference(package):
    if not all(map(installed, BOTH)):
        pytest.skip("the pages describe both frameworks")
    entries = set(re.findall(r"^## (.+)$", "\n".join(reference.pages().values()), re.M))
    for name in public(package):
        assert {name, name.removeprefix(f"{package.__name__}.")} & entries, name


def test_a_description_is_that_of_its_framework(package):
    """It has every section except the other framework's, and its own errors."""
    framework = package.__name__.partition(".")[2]
    (other,) = {*TITLES.values()} - {TITLES[framework]}
    for function in functions.PUBLIC:
        whole = functions.whole_description(function)
        text = inspect.getdoc(getattr(package, function.__name__))
        sections = [title for title, _ in reference.SECTION.findall(f"{whole}\n")]
        assert other in sections
        sections.remove(other)
        assert [title for title, _ in reference.SECTION.findall(f"{text}\n")] == sections
        assert not any(f"({title})" in text for title in TITLES.values())
        assert whole.partition("Raises:")[0] == text.partition("Raises:")[0]
    raised = inspect.getdoc(package.rms_norm).partition("Raises:\n    ")[2].partition(":")[0]
    assert raised == {"torch": "RuntimeError", "tf": "InvalidArgumentError or ValueError"}[framework]
    assert ("TypeError: total" in inspect.getdoc(package.accumulate_matmul)) == (framework == "tf")


def test_examples(package):
    """Each function and layer has an example for this framework, which prints the stated output."""
    framework = package.__name__.partition(".")[2]
    names = {"fo": package, "fusedops": fusedops, framework: importlib.import_module(MODULES[framework])}
    if framework == "torch":
        names["fnn"] = package.nn
    else:
        names |= {"fk": package.keras, "keras": importlib.import_module("keras")}
    runner, parser = doctest.DocTestRunner(), doctest.DocTestParser()
    for name, member in described(package).items():
        sections = reference.SECTION.findall(inspect.getdoc(member) + "\n")
        code = "".join(body for title, body in sections if title in (TITLES[framework], "Example"))
        example = parser.get_doctest(code, dict(names), name, None, None)
        assert example.examples, f"{name} has no example"
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0
