"""`convert` and `revert` for the layers that are the same on all backends of Keras."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from fusedops import conversion
from fusedops.keras_layers import internals
from fusedops.keras_layers.backend import PACKAGE
from fusedops.keras_layers.counterparts import Layers

_Model = TypeVar("_Model", bound=keras.layers.Layer)

_RULES = Layers()
_COMPILED = ("train_function", "test_function", "predict_function", "generate_function")  # the last is KerasHub's


def convert(model: _Model, verbose: bool = True, *, fuse_loss: bool = False) -> _Model:
    """Converts every layer of a model that fusedops knows to its kernels, and prints which ones.

    A layer changes in place, to a subclass of its own class that computes the same and adds no state. Weights, names,
    configs, the optimizer's state and all references to layers stay valid. A subclass of a known class is skipped,
    because it may compute something else. A second conversion changes nothing. In a compiled model, a
    keras.losses.SparseCategoricalCrossentropy is replaced as well. Functions that Keras compiled for the
    model are compiled again; a function that the user has jitted keeps the layers of its trace.

    Args:
        model: a Keras 3 model or layer.
        verbose: True prints what was replaced and what was skipped, and why.
        fuse_loss: must be False: the steps of Keras's JAX backend return the logits of a model. The layer
            LinearCrossEntropyLoss makes none.

    Returns:
        The same model. If nothing in it could be converted, there is a warning.

    Raises:
        TypeError: it is not a Keras model or layer.
        ValueError: `fuse_loss` is True.
    """
    layers = layers_of("convert", model)
    if fuse_loss:
        raise ValueError(
            f"{PACKAGE}.keras.convert: fuse_loss must be False on Keras's JAX backend, whose steps return the logits; "
            "got True: make the last layer a LinearCrossEntropyLoss"
        )
    report = conversion.Report(_RULES, model.name)
    conversion.convert([*losses_of(layers), *layers], _RULES, report)
    _forget(layers)
    if report.has_replaced(keras.layers.Dropout):
        report.notes.append(conversion.OTHER_MASKS)
    report.publish(f"{PACKAGE}.keras.convert", verbose)
    return model


def revert(model: _Model) -> _Model:
    """Undoes `convert`: gives every converted layer its class of Keras's back.

    Layers of fusedops that replace no layer of Keras's, such as GatedDense, stay. So does a loss with class weights or
    a z-loss, which Keras's lacks.

    Args:
        model: a Keras 3 model or layer.

    Returns:
        The same model.

    Raises:
        TypeError: it is not a Keras model or layer.
    """
    layers = layers_of("revert", model)
    conversion.revert([*layers, *losses_of(layers)], _RULES)
    _forget(layers)
    return model


def layers_of(function: str, model: Any) -> list[keras.layers.Layer]:
    """The model and every layer in it, each once."""
    if not isinstance(model, keras.layers.Layer):
        raise conversion.no_model(f"{PACKAGE}.keras.{function}", "a Keras 3 model or layer", model)
    return internals.layers(model)


def compiled_models(layers: list[keras.layers.Layer]) -> list[keras.Model]:
    """The compiled models among the layers."""
    return [layer for layer in layers if isinstance(layer, keras.Model) and layer.compiled]


def losses_of(layers: list[keras.layers.Layer]) -> list[keras.losses.Loss]:
    """The losses of the compiled models among the layers."""
    losses = [loss for model in compiled_models(layers) for loss in keras.tree.flatten(model.loss)]
    return [loss for loss in dict.fromkeys(losses) if isinstance(loss, keras.losses.Loss)]


def remade(layer: keras.layers.Layer, name: str, value: Any) -> bool:
    """Makes a function anew that Keras compiled for a model; False for any other attribute.

    It is made at once: if a callback of `fit` converts the model, the next step calls it.
    """
    make = getattr(layer, f"make_{name}", None) if name in _COMPILED else None
    if make is None or value is None:
        return False
    setattr(layer, name, None)
    make()
    return True


def _forget(layers: list[keras.layers.Layer]) -> None:
    for layer in layers:
        for name, value in list(vars(layer).items()):
            remade(layer, name, value)
