"""What `convert` does alike with PyTorch's modules and with Keras's layers: fusedops/conversion.py."""

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


def test_a_defect_is_not_taken_for_another_version(any_backend, monkeypatch):
    """Of the framework's own layers every version is known: an error in their counterparts is nothing else."""
    layer, counterpart, convert = softmax(any_backend)

    def why_not(self, *inputs):
        raise AttributeError("no attribute 'axes'")

    monkeypatch.setattr(counterpart, "why_not", why_not)
    with pytest.raises(AttributeError, match="no attribute 'axes'"):
        convert(layer)


def test_nothing_converted_is_a_warning(any_backend, capsys):
    layer, _, convert = softmax(any_backend)
    layers = any_backend.torch.nn if any_backend.framework == "torch" else import_module("keras").layers
    plain = layers.Identity()
    said = r"nothing was converted: none of the 1 (modules|layers) of '\w+' could be replaced"
    with pytest.warns(UserWarning, match=rf"fusedops.*convert: {said}; the report says why") as warned:
        convert(plain)
    assert warned[0].filename == __file__
    assert re.match(rf"fusedops: {said}\n", capsys.readouterr().out)
    with pytest.warns(UserWarning, match="with verbose=True, says why"):
        convert(plain, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(layer)
        convert(layer)  # there is nothing more to do, and nothing to warn of
