"""The public functions: the same in both frameworks, with these names, orders and defaults, and described."""

from __future__ import annotations

import inspect
import pickle

import pytest

from fusedops import functions
from fusedops.functions import OF_TENSORS
from tests.specifications import SIGNATURES

OTHERS = {"convert", "explain", "library_path", "load", "revert"}  # functions that are no operators


def test_names(package):
    """No function is missing in the package, or among the specifications."""
    assert set(package.__all__) - OTHERS == SIGNATURES.keys()


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(package, name):
    function = getattr(package, name)
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    if package.__name__ == "fusedops.tf" and name in OF_TENSORS:
        last = parameters.pop()
        assert (last.name, last.default) == ("name", None)
    assert str(signature.replace(parameters=parameters, return_annotation=signature.empty)) == SIGNATURES[name]
    assert (function.__name__, function.__module__) == (name, package.__name__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_description(package, name):
    """What `help` shows: a sentence, every argument by name, what comes back and what is raised."""
    function = getattr(package, name)
    text = inspect.getdoc(function)
    parts = ("Args:", "Returns:", "Raises:")
    assert all(f"\n\n{part}\n" in text for part in parts)
    described = text.split("\n\nArgs:\n")[1].split("\n\n")[0]
    for parameter in inspect.signature(function).parameters:
        assert f"    {parameter}: " in described or parameter == "name"


def test_functions_pickle_by_name(package):
    for name in SIGNATURES:
        function = getattr(package, name)
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("function", functions.PUBLIC, ids=lambda function: function.__name__)
def test_both_packages_run_the_code_of_one_source(package, function):
    """With the package's own operators: a traceback and `inspect.getsource` lead to the source."""
    public = inspect.unwrap(getattr(package, function.__name__))
    assert public.__code__ is function.__code__ and inspect.getsource(public) == inspect.getsource(function)
    assert public.__globals__ is vars(package.functions) and public.__globals__["ops"] is package.ops


def test_wrong_arguments(package):
    """Python's own errors, with the function's name."""
    for arguments, options, sentence in (
        ((1, 2, 3), {}, "takes from 1 to 2 positional arguments but 3"),
        ((1,), {"epz": 1}, "got an unexpected keyword argument 'epz'"),
        ((), {}, "missing 1 required positional argument: 'x'"),
    ):
        with pytest.raises(TypeError, match=rf"rms_norm\(\) {sentence}"):
            package.rms_norm(*arguments, **options)
