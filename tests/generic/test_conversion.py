"""Behaviour that `convert` shares between PyTorch's modules and Keras's layers (fusedops/conversion.py)."""

from __future__ import annotations

import re
import warnings
from importlib import import_module

import pytest


def softmax(backend):
    """A layer of the framework's own, its counterpart's class, and `convert`."""
    if backend.framework == "torch":
        fo = import_module("fusedops.torch")
        return backend.torch.nn.Softmax(-1), fo.nn.Softmax, fo.convert
    fk = import_module("fusedops.tf.keras")
    return import_module("keras").layers.Softmax(), fk.Softmax, fk.convert


@pytest.mark.frameworks("torch", "tf")
def test_a_defect_is_not_taken_for_another_version(any_backend, monkeypatch):
    """Every version of the framework's own layers is supported: an error in a counterpart is reported as a defect."""
    layer, counterpart, convert = softmax(any_backend)

    def why_not(self, *inputs):
        raise AttributeError("no attribute 'axes'")

    monkeypatch.setattr(counterpart, "why_not", why_not)
    with pytest.raises(AttributeError, match="no attribute 'axes'"):
        convert(layer)


@pytest.mark.frameworks("torch", "tf")
def test_the_headline_counts_the_lines(any_backend, capsys):
    """The headline counts layers that are replaced unconditionally or on a condition, and optimizers of Keras."""
    if any_backend.framework == "torch":
        nn, convert = any_backend.torch.nn, import_module("fusedops.torch").convert
        model = nn.Sequential(nn.Softmax(-1), nn.Softmax(-1), nn.Softmax(1), nn.LayerNorm(4), nn.Linear(4, 4))
        beside, counts = "", (3, 1)
    else:
        keras, convert = import_module("keras"), import_module("fusedops.tf.keras").convert
        layers = [keras.layers.Softmax(), keras.layers.Softmax(axis=1), keras.layers.Embedding(4, 4)]
        model = keras.Sequential(layers)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        beside, counts = ", 2 that are no layers", (1, 1, 2)
    convert(model)
    headline, *lines = capsys.readouterr().out.splitlines()
    expected = rf"fusedops: {counts[0]} of \d (modules|layers) of '\w+' replaced, 1 more on a condition{beside}"
    assert re.fullmatch(expected, headline)
    assert sum(int(line.split()[0]) for line in lines if " -> " in line) == sum(counts)


@pytest.mark.frameworks("torch", "tf")
def test_a_class_and_a_model_of_the_other_framework_are_refused(any_backend):
    """The error for each says what to do."""
    torch, keras = import_module("torch").nn, import_module("keras").layers
    models = {"fusedops.torch": torch.Linear(2, 2), "fusedops.tf.keras": keras.Dense(2)}
    package = "fusedops.torch" if any_backend.framework == "torch" else "fusedops.tf.keras"
    expected = {"fusedops.torch": "a torch.nn.Module", "fusedops.tf.keras": "a Keras 3 model or layer"}[package]
    (other,) = models.keys() - {package}
    kind = type(models[package])
    functions = ["convert", "revert", *(["explain", "graphed"] if any_backend.framework == "torch" else [])]
    for name in functions:
        function = getattr(import_module(package), name)
        for given, got in (
            (kind, f"the class {kind.__module__}.{kind.__name__}: give a model of it"),
            (models[other], f"{type(models[other])}, which {other} converts"),
            (3, "<class 'int'>"),
        ):
            with pytest.raises(TypeError) as raised:
                function(given)
            assert str(raised.value) == f"{package}.{name}: model must be {expected}; got {got}"


@pytest.mark.frameworks("torch", "tf")
def test_nothing_converted_is_a_warning(any_backend, capsys):
    layer, _, convert = softmax(any_backend)
    layers = any_backend.torch.nn if any_backend.framework == "torch" else import_module("keras").layers
    plain = layers.Identity()
    message = r"nothing was converted: none of the 1 (modules|layers) of '\w+' could be replaced"
    with pytest.warns(UserWarning, match=rf"fusedops.*convert: {message}; the report says why") as warned:
        convert(plain)
    assert warned[0].filename == __file__
    assert re.match(rf"fusedops: {message}\n", capsys.readouterr().out)
    with pytest.warns(UserWarning, match="with verbose=True, says why"):
        convert(plain, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(layer)
        convert(layer)  # nothing more to convert, and nothing to warn of
