"""The public functions: the same in both frameworks, with these names, orders and defaults, and described."""

from __future__ import annotations

import inspect
import pickle

import pytest

from tests.specifications import SPECIFICATIONS

SIGNATURES = {
    "axpby": "(a, x, b)",
    "add": "(x, y)",
    "scale": "(x, factor)",
    "relu": "(x)",
    "polynomial_activation": "(x, coefficients=(1.0, 1.0, 1.0))",
    "bias_act": "(x, bias=None, activation='gelu')",
    "gated_act": "(gate, up=None, activation='silu')",
    "swiglu": "(gate, up=None)",
    "geglu": "(gate, up=None, *, approximate='none')",
    "reglu": "(gate, up=None)",
    "rms_norm": "(x, weight=None, *, eps=1e-06, weight_offset=0.0)",
    "layer_norm": "(x, weight=None, bias=None, *, eps=1e-05)",
    "add_rms_norm": "(x, residual, weight=None, *, eps=1e-06, weight_offset=0.0)",
    "add_layer_norm": "(x, residual, weight=None, bias=None, *, eps=1e-05)",
    "softmax": "(x, *, scale=1.0, mask=None, causal=False)",
    "cross_entropy": "(logits, labels, *, ignore_index=-100, label_smoothing=0.0, reduction='mean')",
    "rope": "(x, cos, sin, *, seq_dim=-3, interleaved=False)",
    "matmul": "(a, b, *, transpose_a=False, transpose_b=False)",
}


def test_names(package):
    """No function is missing here, in the package, or among the specifications."""
    public = set(package.__all__) - {"library_path"}
    assert public == set(SIGNATURES)
    assert public == {spec.name for spec in SPECIFICATIONS} | {"swiglu", "geglu", "reglu"}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(package, name):
    function = getattr(package, name)
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    if package.__name__ == "fusedops.tf":
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
