"""Types, for checkers and at run time; and `dir` of the packages."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import runpy
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import fusedops
from build_tools import operators
from fusedops import lazy
from fusedops.building import stubs
from fusedops.functions import common
from tests.helpers.activations import ACTIVATIONS
from tests.helpers.frameworks import BOTH, installed
from tests.helpers.running import ROOT

TYPED = ROOT / "tests/tools/typed"
OTHERS = {
    "fusedops.torch": {"convert", "distributed", "explain", "graphed", "jit", "load", "nn", "ops", "optim", "revert"},
    "fusedops.tf": {"keras", "library_path", "load", "ops"},
}

CONFIGURATION = """
[mypy]
strict = true
show_error_codes = true
[mypy-fusedops.*]
follow_imports = silent
# The whole of torch takes half a minute, the modules below a few seconds.
[mypy-torch.*]
follow_imports = skip
[mypy-torch,torch._tensor,torch._C.*,torch.functional,torch.nn,torch.nn.functional,torch.nn.modules.*,torch.nn.parameter,torch.types]
follow_imports = silent
[mypy-keras.*]
ignore_missing_imports = true
"""


def public(package):
    return set(package.__all__) | OTHERS[package.__name__]


def layers(package):
    """The layers of a package, and the functions in the same modules."""
    module = package.nn if package.__name__ == "fusedops.torch" else package.keras
    return [getattr(module, name) for name in module.__all__]


def test_the_types_of_the_operators_are_up_to_date():
    assert operators.FILE.read_text() == operators.text(), "Run: make build"


def test_the_types_of_the_functions_are_up_to_date():
    for path, text in stubs.files(stubs.PACKAGE).items():
        assert path.read_text() == text, "Run: make build"


def test_the_types_of_the_functions_are_those_at_run_time(package):
    """An editor shows the signatures and descriptions that `help` shows."""
    path = Path(fusedops.__file__).with_name(package.__name__.partition(".")[2]) / "functions.pyi"
    definitions = [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)]
    assert [each.name for each in definitions] == package.functions.__all__
    for definition in definitions:
        function = getattr(package, definition.name)
        assert ast.get_docstring(definition) == inspect.getdoc(function)
        shown = {x.arg: ast.unparse(x.annotation) for x in [*definition.args.args, *definition.args.kwonlyargs]}
        assert shown == {name: p.annotation for name, p in inspect.signature(function).parameters.items()}


def test_the_activations_are_those_of_the_kernels():
    assert typing.get_args(common.Activation) == tuple(ACTIVATIONS)


def test_annotations_at_run_time(package):
    """All arguments of functions, layers' constructors and calls are annotated, and the annotations resolve."""
    functions = [getattr(package, name) for name in public(package) if inspect.isfunction(getattr(package, name))]
    methods = [
        member
        for layer in layers(package)
        for kind in getattr(layer, "__mro__", ())
        if kind.__module__.startswith("fusedops.")
        for member in vars(kind).values()
        if inspect.isfunction(member)
    ]
    for function in [*functions, *filter(inspect.isfunction, layers(package)), *methods]:
        hints = typing.get_type_hints(function)
        for name in inspect.signature(function).parameters:
            assert name in hints or (function in methods and name in ("self", "cls")), function
        assert "return" in hints, function
    for layer in layers(package):
        typing.get_type_hints(layer)
        inspect.signature(layer, eval_str=True)


OURS = {"master_weights", "max_grad_norm"}  # arguments of optimizers that the framework's own lack


def optimizers(package):
    module = package.optim if package.__name__ == "fusedops.torch" else package.keras.optimizers
    return [getattr(module, name) for name in module.__all__]


def test_constructors_name_their_arguments(package):
    """Only Keras has a **kwargs, whose names its own layer checks."""
    in_torch = package.__name__ == "fusedops.torch"
    for kind in [*filter(inspect.isclass, layers(package)), *optimizers(package)]:
        kinds = {parameter.kind for parameter in inspect.signature(kind).parameters.values()}
        assert inspect.Parameter.VAR_POSITIONAL not in kinds, kind
        assert not in_torch or inspect.Parameter.VAR_KEYWORD not in kinds, kind


def test_optimizers_have_the_arguments_of_the_frameworks(package):
    for kind in optimizers(package):
        own = dict(inspect.signature(kind).parameters)
        (base,) = [each for each in kind.__bases__ if each.__name__ == kind.__name__]
        expected = inspect.signature(base).parameters
        assert own.keys() - expected.keys() <= OURS and expected.keys() <= own.keys(), kind
        for name, parameter in expected.items():
            assert (own[name].kind, own[name].default) == (parameter.kind, parameter.default), (kind, name)
        positional = [name for name, x in own.items() if x.kind is x.POSITIONAL_OR_KEYWORD]
        assert positional == [name for name, x in expected.items() if x.kind is x.POSITIONAL_OR_KEYWORD], kind
        with pytest.raises((TypeError, ValueError), match="foo"):
            kind([], foo=3) if package.__name__ == "fusedops.torch" else kind(foo=3)


def test_all(package):
    """`__all__` has every function of the package, and no module."""
    modules = {name for name in public(package) if inspect.ismodule(getattr(package, name))}
    assert set(package.__all__) == public(package) - modules - {"ops"}
    imported = {}
    exec(f"from {package.__name__} import *", imported)
    assert {*package.__all__} <= imported.keys()


def test_dir(package):
    assert dir(package) == sorted(public(package))
    assert all(hasattr(package, name) for name in dir(package))
    assert {"__version__", "show_config", package.__name__.partition(".")[2]} <= set(dir(fusedops))
    module = package.nn if package.__name__ == "fusedops.torch" else package.keras
    assert set(module.__all__) <= set(dir(module)) <= {*module.__all__, "activations", "optimizers"}


def test_a_lazy_member_that_cannot_be_imported_is_absent():
    """`help` and completion access all names that `dir` lists."""
    get = lazy.members("fusedops", {"lazy": "fusedops.lazy", "members": "fusedops.lazy", "gone": "no.such.module"})
    assert get("lazy") is lazy and get("members") is lazy.members
    with pytest.raises(AttributeError, match="No module named 'no'"):
        get("gone")
    with pytest.raises(AttributeError, match="module 'fusedops' has no attribute 'other'"):
        get("other")


def test_a_checker_of_users_files(tmp_path):
    """A checker accepts the right calls with their types, and refuses each wrong one for the marked reason."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    files = sorted(path for framework in filter(installed, BOTH) for path in TYPED.glob(f"*_{framework}.py"))
    package = Path(fusedops.__file__).parents[1]
    paths = [TYPED / "stubs", *([] if package.name == "site-packages" else [package])]
    configuration = tmp_path / "mypy.ini"
    configuration.write_text(CONFIGURATION.replace("[mypy]\n", f"[mypy]\nmypy_path = {':'.join(map(str, paths))}\n"))
    command = ["--config-file", configuration, "--cache-dir", ROOT / ".mypy_cache/typed", *files]
    done = subprocess.run([sys.executable, "-m", "mypy", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    found = re.findall(r"(\w+\.py):(\d+): error: .* (\[[\w-]+\])$", done.stdout, re.MULTILINE)
    marked = [
        (path.name, str(number), mark[1])
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (mark := re.search(r"# error: (\[[\w-]+\])$", line))
    ]
    assert marked and sorted(found) == sorted(marked), done.stdout


def test_the_right_calls_are_right(package):
    runpy.run_path(str(TYPED / f"right_{package.__name__.partition('.')[2]}.py"))
