"""`convert` and `revert` for Keras models."""

from __future__ import annotations

import warnings
from typing import TypeVar
from weakref import WeakSet

import keras

from fusedops import conversion
from fusedops.keras_layers import internals
from fusedops.keras_layers.conversion import compiled_models, layers_of, losses_of
from fusedops.tf import xla
from fusedops.tf.keras import fused_loss, hub, traces
from fusedops.tf.keras.counterparts import RULES, AllLayers

_Model = TypeVar("_Model", bound=keras.layers.Layer)

_without_xla: WeakSet[keras.Model] = WeakSet()  # models whose XLA was turned off, until `revert` turns it on again


def convert(model: _Model, verbose: bool = True, *, fuse_loss: bool = False) -> _Model:
    """Converts every layer of a model that fusedops knows to its kernels, and prints which ones.

    A layer changes in place, to a subclass of its own class that computes the same and adds no state. Weights, names,
    configs, the optimizer's state, the graph of a functional model and all references to layers stay valid. Nested
    layers are found wherever Keras finds them. A subclass of a known class is skipped, because it may compute something
    else. A second conversion changes nothing.

    Known are Keras's layers that `fusedops.tf.keras` has under the same name, and KerasHub's layers that
    `fusedops.tf.keras.hub` lists. In a compiled model, a keras.losses.SparseCategoricalCrossentropy is replaced as
    well, and so is an optimizer that `fusedops.tf.keras.optimizers` has. XLA is turned off if fusedops's XLA library is
    not loaded.

    Functions that Keras traced for the model are traced again, and so is any `tf.function` that is a method or an
    attribute of a layer. A `tf.function` elsewhere keeps the layers of its trace. Convert the outermost model: a
    compiled model around it is not updated. A callback of `fit` may convert the model between two steps. A layer with
    dropout keeps its seed generator, but drops other elements with the same seeds; the report says so.

    With `fuse_loss=True`, a compiled functional or sequential model makes no logits in the steps of `fit`,
    `train_on_batch`, `evaluate` and `test_on_batch`. Its output, or one of several, must be that of a `Dense` layer or
    of a reversed `ReversibleEmbedding`, as in KerasHub's causal language models. `fusedops.tf.linear_cross_entropy`
    computes its SparseCategoricalCrossentropy from the last hidden states, with a soft cap, and weighted, masked and
    reduced as before. Calls of the model, `predict` and `generate` return logits as ever.

    The logits are still computed, and the report says why, for another loss; for metrics, which read them; for a head
    that is quantized or more than a product and a cap; and for a model with a step of its own. KerasHub compiles its
    models with a metric by default, and without it by `weighted_metrics=[]`. Each step checks this again: a model that
    is compiled anew, with metrics or with a loss of Keras's, computes its logits. A model that is saved and loaded
    computes them until it is converted.

    A converted model is saved under the names of fusedops's classes: `import fusedops.tf.keras` before
    `keras.saving.load_model`. To load the file with Keras alone, `revert` the model before `save`.

    Args:
        model: a Keras 3 model or layer.
        verbose: True prints what was replaced and what was skipped, and why. Skipped layers show their share of the
            model's parameters.
        fuse_loss: True computes the loss of a language model without its logits. The report says what that saves.

    Returns:
        The same model. If nothing in it could be converted, there is a warning.

    Raises:
        TypeError: it is not a Keras model or layer.
    """
    reported(model, fuse_loss).publish("fusedops.tf.keras.convert", verbose)
    return model


def reported(model: keras.layers.Layer, fuse_loss: bool = False) -> conversion.Report:
    """`convert` with its report as an object."""
    layers = layers_of("convert", model)
    losses = losses_of(layers)
    rules = AllLayers(fuse_loss)
    report = conversion.Report(rules, model.name)
    try:
        hub.learn_activations()
    except (ImportError, AttributeError) as error:
        report.notes.append(f"this version of KerasHub has other activation functions: {error}")
    # A loss comes before its model, whose counterpart requires ours.
    conversion.convert([*losses, *_optimizers(layers), *layers], rules, report)
    if _resolve_xla(layers):
        report.notes.append(f"XLA is turned off for this model: {xla.fault}")
    report.notes += traces.forget(layers)
    trained = list(filter(fused_loss.has_loss, compiled_models(layers)))
    report.notes += filter(None, (fused_loss.note(each, fuse_loss) for each in trained))
    if fuse_loss and not trained:
        report.notes.append(
            "fuse_loss=True changes a model that is compiled with a loss: compile it, and convert it again"
        )
    if report.has_replaced(keras.layers.Dropout):
        report.notes.append(conversion.OTHER_MASKS)
    return report


def revert(model: _Model) -> _Model:
    """Undoes `convert`: gives every converted layer its class of Keras's or KerasHub's back.

    Layers of fusedops that replace no layer of either, such as GatedDense, stay. So does a loss with class weights or a
    z-loss, which Keras's lacks.

    Args:
        model: a Keras 3 model or layer.

    Returns:
        The same model.

    Raises:
        TypeError: it is not a Keras model or layer.
    """
    layers = layers_of("revert", model)
    conversion.revert([*layers, *losses_of(layers), *_optimizers(layers)], RULES)
    _resolve_xla(layers)
    for fault in traces.forget(layers):
        warnings.warn(f"fusedops.tf.keras.revert: {fault}", stacklevel=2)
    return model


def _optimizers(layers: list[keras.layers.Layer]) -> list[keras.optimizers.Optimizer]:
    """The optimizers of the compiled models among the layers, if they have counterparts."""
    found = [model.optimizer for model in compiled_models(layers)]
    found = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer in found]  # of a LossScaleOptimizer
    return [x for x in dict.fromkeys(found) if RULES.is_ours(x) or RULES.is_known(type(x))]


def _resolve_xla(layers: list[keras.layers.Layer]) -> bool:
    """Turns XLA off for compiled models with a layer unknown to XLA, or on again. True if any was turned off."""
    turned_off = False
    for model in compiled_models(layers):
        parts = [*internals.layers(model), *filter(RULES.is_ours, _optimizers([model]))]
        able = all(part.supports_jit for part in parts)
        if model.jit_compile and not able:
            _without_xla.add(model)
            model.jit_compile, turned_off = False, True
        elif able and model in _without_xla:
            _without_xla.remove(model)
            model.jit_compile = True
    return turned_off
