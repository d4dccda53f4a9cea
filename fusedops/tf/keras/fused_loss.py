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

from fusedops.conversion import subclass
from fusedops.tf.keras.internals import Functional, metrics_of, unpack_singleton
from fusedops.tf.keras.layer import FusedLayer
from fusedops.tf.keras.logits import Head, Logits
from fusedops.tf.keras.losses import SparseCategoricalCrossentropy

# The methods of a model that a step calls.
_KNOWN = ("__call__", "call", "compute_loss", "compute_metrics", "test_step", "train_step")
_OF_HUB = ("keras_hub.src.utils.pipeline_model", "__call__")  # refuses strings, and calls Keras's
_METRICS = "its metrics read the logits; compile it with metrics=[] and weighted_metrics=[] to leave them out"

# The model whose step runs, until the first call in it.
_stepping: ContextVar[keras.Model | None] = ContextVar("_stepping", default=None)


class WithoutLogits(FusedLayer):
    """Precedes the class of a functional model among the bases of its counterpart."""

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
        head = Head.of(self.outputs[0])
        logits = Logits(head, self._trunk(head)(inputs, training=training, mask=mask, **kwargs))
        return unpack_singleton(keras.tree.pack_sequence_as(self.output, [logits]))  # as Keras packs its outputs

    def _trunk(self, head: Head) -> Any:
        """The call of the model without its head.

        The model itself holds it. A global table would never drop it, since its graph leads to the models around this
        one, and from them to this one. It is a method set past Keras, which neither tracks nor saves it.
        """
        if "_call_of_trunk" not in vars(self):
            trunk = keras.Model(self.input, head.states, name=self.name)
            object.__setattr__(self, "_call_of_trunk", trunk.call)
        return vars(self)["_call_of_trunk"]

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
    """The reason why a model computes logits in its steps; None if a counterpart omits them; "" without a loss."""
    if not has_loss(model):
        return ""
    if not isinstance(model, Functional):
        return "it is no functional model"
    kind = model.original if isinstance(model, WithoutLogits) else type(model)
    own = next((name for name in _KNOWN if name in vars(model) or _is_own(kind, name)), None)
    if own:
        return f"it has another {own} than Keras's"
    if len(model.outputs) != 1:  # checked first, since each of several outputs may have a loss
        return f"it has {len(model.outputs)} outputs"
    losses = keras.tree.flatten(model.loss)
    if len(losses) != 1 or type(losses[0]) is not SparseCategoricalCrossentropy or not losses[0].from_logits:
        return "its loss is no SparseCategoricalCrossentropy(from_logits=True)"
    if model.activity_regularizer is not None or model._remat_mode is not None:
        return "it has an activity regularizer or a RematScope"
    return Head.of(model.outputs[0]).why_not() or (_METRICS if metrics_of(model) else None)


def _is_own(kind: type, name: str) -> bool:
    """True if the method of a model's class may differ from Keras's."""
    method = getattr(kind, name)
    return method is not getattr(Functional, name) and (getattr(method, "__module__", None), name) != _OF_HUB


def note(model: keras.Model, asked: bool) -> str | None:
    """The report's note on the logits of a model with a loss, if any. `asked`: `convert` was to omit the logits."""
    reason = unfused(model)
    if reason not in (None, _METRICS):
        return None
    head = Head.of(model.outputs[0])
    saving = f"{2 * head.classes * head.dtype.size / 1000:,.0f} kB a token"
    if isinstance(model, WithoutLogits) and not reason:
        return f"{model.name!r} makes no logits in training, which saves {saving}"
    if asked or len(model.outputs[0].shape) < 3:  # a classifier has few logits
        return None
    condition = ", if it is compiled without metrics" if reason else ""
    return f"fuse_loss=True would leave out the logits of {model.name!r} in training: {saving}{condition}"
