"""Private APIs of Keras, gathered here to be checked against each new version."""

from __future__ import annotations

from math import prod
from types import MethodType
from typing import Any

import keras

from fusedops.keras_layers import versions

try:
    from keras.src.backend import AutocastScope as AutocastScope
    from keras.src.backend import get_keras_mask as get_keras_mask
    from keras.src.backend import set_keras_mask as set_keras_mask
    from keras.src.losses.loss import reduce_weighted_values as reduce_weighted_values
    from keras.src.models.functional import Functional as Functional
    from keras.src.models.functional import unpack_singleton as unpack_singleton
except ImportError as error:
    raise versions.unknown(error) from error


def layers(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The model and every layer in it, each once."""
    return list(dict.fromkeys(model._flatten_layers()))


def functional_of(model: keras.Model) -> Any:
    """The Functional that a model calls: itself, or that of a Sequential; None before it is built."""
    found = model._functional if isinstance(model, keras.Sequential) else model
    return found if isinstance(found, Functional) else None


def has_layers(thing: Any) -> bool:
    return bool(getattr(thing, "_layers", None))


def parameters(thing: Any) -> int:
    """The number of parameters of a layer itself; 0 for a loss or an optimizer."""
    if not isinstance(thing, keras.layers.Layer):
        return 0
    return sum(prod(variable.shape) for variable in getattr(thing, "_trainable_variables", ()))


def made_by(tensor: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The layer or operation whose call made a symbolic tensor, and the arguments of the call."""
    operation, call, _ = tensor._keras_history
    arguments = operation._inbound_nodes[call].arguments
    return operation, arguments.args, arguments.kwargs


def metrics_of(model: keras.Model) -> list[Any]:
    """The metrics that a model is compiled with: `compile` without any leaves those of an earlier `compile`."""
    compiled = model._compile_metrics
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    return [metric for metric in keras.tree.flatten(given) if metric is not None]


def become(thing: Any, kind: type) -> None:
    """Gives a layer, a loss or an optimizer another class.

    Keras wraps two methods of each layer when it is made. The wrappers hold the methods of its class at that time in a
    closure, which no public API reaches.
    """
    object.__setattr__(thing, "__class__", kind)  # past Keras, which would track the value
    if isinstance(thing, keras.layers.Layer):
        # TensorFlow's __setattr__ drops a value that a property has already, as that of FusedLayer has while a layer is
        # made. Keras's class needs the attribute.
        vars(thing).setdefault("supports_jit", True)
    for name in ("build", "quantize"):
        wrapper = vars(thing).get(name)
        method = getattr(wrapper, "__wrapped__", None)
        if isinstance(method, MethodType) and method.__self__ is thing:
            for cell in getattr(wrapper, "__closure__", None) or ():
                if cell.cell_contents is method:
                    wrapper.__wrapped__ = cell.cell_contents = MethodType(getattr(kind, name), thing)
