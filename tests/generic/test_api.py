"""The public functions: the same names, orders and defaults in both frameworks, and a description of each."""

from __future__ import annotations

import importlib
import inspect
import pickle

import pytest

from fusedops import functions
from fusedops.functions import OF_TENSORS, common, refusal
from tests.specifications import SIGNATURES

_UNDEFINED = "NotImplementedError"
OTHERS = {"convert", "explain", "graphed", "library_path", "load", "revert"}  # functions that are not operators


def test_names_match_the_specifications(package):
    """The package and the specifications name the same functions."""
    assert set(package.__all__) - OTHERS == SIGNATURES.keys()


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_match_the_specifications(package, name):
    function = getattr(package, name)
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    if package.__name__ == "fusedops.tf" and name in OF_TENSORS:
        last = parameters.pop()
        assert (last.name, last.default) == ("name", None)
    assert str(signature.replace(parameters=parameters, return_annotation=signature.empty)) == SIGNATURES[name]
    assert (function.__name__, function.__module__) == (name, package.__name__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_help_describes_arguments_result_and_errors(package, name):
    """`help` shows a sentence, every argument by name, the result and the errors."""
    function = getattr(package, name)
    text = inspect.getdoc(function)
    parts = ("Args:", "Returns:", "Raises:")
    assert all(f"\n\n{part}\n" in text for part in parts)
    described = text.split("\n\nArgs:\n")[1].split("\n\n")[0]
    for parameter in inspect.signature(function).parameters:
        assert f"    {parameter}: " in described or parameter == "name"


def test_a_framework_has_its_own_for_each_name_of_common(package):
    """A function of common.py without a body is another function in the framework."""
    names = {x for x, f in vars(common).items() if inspect.isfunction(f) and f.__code__.co_names[:1] == (_UNDEFINED,)}
    assert "seed_of" in names
    module = vars(importlib.import_module(f"{package.__name__}.functions"))
    assert {x for x in names if module[x] is getattr(common, x)} == set()


def test_functions_pickle_by_name(package):
    for name in SIGNATURES:
        function = getattr(package, name)
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("function", functions.PUBLIC, ids=lambda function: function.__name__)
def test_both_packages_run_the_code_of_one_source(package, function):
    """A traceback and `inspect.getsource` lead to the source, with the package's own operators."""
    public = inspect.unwrap(getattr(package, function.__name__))
    assert public.__code__ is function.__code__ and inspect.getsource(public) == inspect.getsource(function)
    assert public.__globals__ is vars(package.functions) and public.__globals__["ops"] is package.ops


def refused(function, *arguments, **options):
    """The error message for a call with these arguments, and Python's own message for it."""
    own = {}
    exec(f"def {function.__name__}{SIGNATURES[function.__name__]}: ...", own)
    sentences = []
    for called in (function, own[function.__name__]):
        with pytest.raises(TypeError) as raised:
            called(*arguments, **options)
        sentences.append(str(raised.value))
    return sentences


@pytest.mark.parametrize("name", SIGNATURES)
def test_unknown_arguments_are_refused(package, name):
    """The error ends with Python's own message and lists the existing arguments."""
    function = getattr(package, name)
    parameters = inspect.signature(next(x for x in functions.PUBLIC if x.__name__ == name)).parameters
    names = [*parameters]
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = [None for p in parameters.values() if p.default is p.empty and p.name in positional]
    unknown, of_python = refused(function, *required, nonsense=1)
    assert unknown == f"fusedops.{name}: nonsense must be one of {', '.join(names)}; {of_python}"
    many, of_python = refused(function, *positional, None)
    by_name = f", and {', '.join(names[len(positional) :])} must be given by name" if names != positional else ""
    assert many == f"fusedops.{name}: positional arguments must be {', '.join(positional)}{by_name}; {of_python}"
    if required:
        missing, of_python = refused(function)
        assert missing == of_python


@pytest.mark.parametrize("argument", [*refusal.NAMES, *refusal.ABSENT])
def test_arguments_of_other_libraries_get_a_suggestion(package, argument):
    """At least one function suggests its own argument, or explains why it has none."""
    seen = set()
    for function in functions.PUBLIC:
        parameters = inspect.signature(function).parameters
        here, (beside, why) = refusal.NAMES.get(argument), refusal.ABSENT.get(argument, ((), ""))
        expected = f"be given as {here}" if here in parameters else f"be left out, since {why}"
        if argument in parameters or not parameters.keys() & {here, *beside}:
            continue
        seen.add(function.__name__)
        required = [None for p in parameters.values() if p.default is p.empty]
        sentence, of_python = refused(getattr(package, function.__name__), *required, **{argument: None})
        assert sentence.startswith(
            f"fusedops.{function.__name__}: {argument} must {expected}; {function.__name__}() got "
        )
        assert sentence.endswith(of_python.partition(". Did you mean")[0])
    assert seen


@pytest.mark.parametrize(
    ("name", "count", "options", "expected"),
    [
        ("attention", 3, {"is_causal": True}, "is_causal must be given as causal"),
        ("attention", 3, {"attn_mask": None}, "attn_mask must be given as mask"),
        ("attention", 3, {"enable_gqa": True}, "enable_gqa must be left out, since "),
        ("attention", 4, {}, "positional arguments must be q, k, v, and causal, scale, mask, "),
        ("softmax", 1, {"dim": -1}, "dim must be left out, since the last dimension is taken"),
        ("softmax", 1, {"axis": -1}, "axis must be left out, since the last dimension is taken"),
        ("layer_norm", 4, {}, "positional arguments must be x, weight, bias, and eps must be given by name"),
        ("cross_entropy", 2, {"weight": None}, "weight must be given as class_weight"),
    ],
)
def test_calls_in_the_style_of_other_libraries_are_refused(package, name, count, options, expected):
    assert refused(getattr(package, name), *[None] * count, **options)[0].startswith(f"fusedops.{name}: {expected}")
