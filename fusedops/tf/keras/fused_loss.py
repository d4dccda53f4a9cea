"""The loss of a language model without its logits: `convert(model, fuse_loss=True)`.

In the steps of `fit` and `evaluate` the model returns `Logits`, which only the loss evaluates. Keras's own step passes
them on, and its own code weights and sums the losses. Everywhere else the model is unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import keras
import tensorflow as tf

from fusedops.conversion import subclass
from fusedops.keras_layers.internals import Functional, functional_of, metrics_of, unpack_singleton
from fusedops.keras_layers.layer import FusedLayer
from fusedops.keras_layers.logits import Head, Logits
from fusedops.keras_layers.losses import SparseCategoricalCrossentropy

KINDS = (Functional, keras.Sequential)  # of models whose steps can omit logits

# The methods of a model that a step calls.
_KNOWN = ("__call__", "call", "compute_loss", "compute_metrics", "test_step", "train_step")
_OF_HUB = ("keras_hub.src.utils.pipeline_model", "__call__")  # refuses strings, and calls Keras's
_METRICS = "its metrics read the logits; compile it with metrics=[] and weighted_metrics=[] to leave them out"

# The model whose step runs, until the first call in it.
_stepping: ContextVar[keras.Model | None] = ContextVar("_stepping", default=None)


class WithoutLogits(FusedLayer):
    """Precedes the class of a functional or sequential model among the bases of its counterpart."""

    original: ClassVar[type]

    def why_not(self, inputs: Any = None) -> str | None:
        return unfused(self)

    def train_step(self, data: Any) -> Any:
        with _step_of(self):
            return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        with _step_of(self):
            return super().test_step(data)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        is_step = _stepping.get() is self
        if is_step:  # the first call is for the loss; an optimizer may call the model later, and expects a tensor
            _stepping.set(None)
        if not is_step or self.why_not():
            return super().call(inputs, training=training, mask=mask, **kwargs)
        heads = _heads(self)
        outputs = keras.tree.flatten(self._trunk(heads)(inputs, training=training, mask=mask, **kwargs))
        outputs = [Logits(head, x) if head else x for head, x in zip(heads, outputs, strict=True)]
        packed = keras.tree.pack_sequence_as(functional_of(self).output, outputs)
        return unpack_singleton(packed)  # as Keras packs its outputs

    def _trunk(self, heads: list[Head | None]) -> Any:
        """The call of the model without these heads.

        The model itself holds it. A global table would never drop it, since its graph leads to the models around this
        one, and from them to this one. It is a method set past Keras, which neither tracks nor saves it.
        """
        if "_calls_of_trunk" not in vars(self):
            object.__setattr__(self, "_calls_of_trunk", {})
        calls = vars(self)["_calls_of_trunk"]
        left_out = tuple(map(bool, heads))
        if left_out not in calls:
            graph = functional_of(self)
            outputs = [head.states if head else x for head, x in zip(heads, graph.outputs, strict=True)]
            calls[left_out] = keras.Model(graph.input, outputs, name=self.name).call
        return calls[left_out]

    def __reduce__(self) -> Any:
        load, saved = super().__reduce__()
        return getattr(self.original, load.__name__), saved


@contextmanager
def _step_of(model: Any) -> Iterator[None]:
    token = _stepping.set(model)
    try:
        yield
    finally:
        _stepping.reset(token)


@functools.cache
def counterpart(kind: type) -> type:
    """The counterpart of a model's class. Keras saves it as that class, so that the model loads as it was.

    Raises:
        UnknownClass: the class takes no subclass.
    """
    named = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
    made = subclass(WithoutLogits, kind, {**named, "original": kind, "mixin": WithoutLogits})
    saved_as = keras.saving.get_registered_name(kind)
    package, registered, name = saved_as.rpartition(">")
    if registered:
        keras.saving.register_keras_serializable(package, name)(made)
        keras.saving.get_custom_objects()[saved_as] = kind
    return made


def has_loss(model: keras.Model) -> bool:
    return model.compiled and getattr(model, "loss", None) is not None


def unfused(model: keras.Model) -> str | None:
    """The reason why a model computes logits in its steps; None if a counterpart omits some; "" without a loss."""
    if not has_loss(model):
        return ""
    if not isinstance(model, KINDS):
        return "it is no functional model"
    if functional_of(model) is None:
        return "it is not built: begin it with an Input"
    kind = model.original if isinstance(model, WithoutLogits) else type(model)
    own = next((name for name in _KNOWN if name in vars(model) or _is_own(kind, name)), None)
    if own:
        return f"it has another {own} than Keras's"
    reasons = _reasons(model)
    if all(reasons):
        return reasons[0]
    if model.activity_regularizer is not None or model._remat_mode is not None:
        return "it has an activity regularizer or a RematScope"
    return _METRICS if metrics_of(model) else None


def _reasons(model: keras.Model) -> list[str | None]:
    """For each output, the reason why it is computed in a step; None if it is logits that only their loss reads."""
    return [
        _why_not(loss) or Head.of(output).why_not()
        for loss, output in zip(_losses(model), functional_of(model).outputs, strict=True)
    ]


def _heads(model: keras.Model) -> list[Head | None]:
    """The heads that a step omits."""
    outputs = functional_of(model).outputs
    return [None if reason else Head.of(x) for reason, x in zip(_reasons(model), outputs, strict=True)]


def _losses(model: keras.Model) -> list[Any]:
    """The loss of each output, as Keras assigns it; None for an output without one."""
    graph = functional_of(model)
    if isinstance(model.loss, dict):
        output = graph.output
        names = keras.tree.flatten({key: key for key in output}) if isinstance(output, dict) else graph.output_names
        return [model.loss.get(name) for name in names]
    losses, count = keras.tree.flatten(model.loss), len(graph.outputs)
    if len(losses) == 1:
        return losses * count
    return losses if len(losses) == count else [None] * count  # Keras raises an error


def _why_not(loss: Any) -> str | None:
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    of_keras = keras.losses.SparseCategoricalCrossentropy
    if loss is keras.losses.sparse_categorical_crossentropy or (isinstance(loss, of_keras) and not loss.from_logits):
        return "its loss reads probabilities; leave out the softmax and give the loss from_logits=True"
    if type(loss) is not SparseCategoricalCrossentropy:
        return "its loss is no SparseCategoricalCrossentropy(from_logits=True)"
    return None


def _is_own(kind: type, name: str) -> bool:
    """True if the method of a model's class may differ from Keras's."""
    method = getattr(kind, name)
    of_keras = next(getattr(each, name) for each in KINDS if issubclass(kind, each))
    return method is not of_keras and (getattr(method, "__module__", None), name) != _OF_HUB


def note(model: keras.Model, asked: bool) -> str | None:
    """The report's note on the logits of a model with a loss, if any. `asked`: `convert` was to omit the logits."""
    reason = unfused(model)
    if reason not in (None, _METRICS):
        return None
    heads = [head for head in _heads(model) if head]
    saving = f"{sum(2 * head.classes * tf.as_dtype(head.dtype).size for head in heads) / 1000:,.0f} kB a token"
    if isinstance(model, WithoutLogits) and not reason:
        return f"{model.name!r} makes no logits in training, which saves {saving}"
    if asked or all(len(head.states.shape) < 3 for head in heads):  # a classifier has few logits
        return None
    condition = ", if it is compiled without metrics" if reason else ""
    return f"fuse_loss=True would leave out the logits of {model.name!r} in training: {saving}{condition}"
