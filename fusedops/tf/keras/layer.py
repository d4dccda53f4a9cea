"""The base of the layers, and its checks of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import keras
import tensorflow as tf

from fusedops.tf import xla
from fusedops.tf.keras.internals import AutocastScope
from fusedops.tf.library import DTYPES

FLOATING = frozenset(dtype for dtype in DTYPES if dtype.is_floating)
_HALF = frozenset(dtype for dtype in FLOATING if dtype.size == 2)

_Class = TypeVar("_Class", bound=type)


class FusedLayer(keras.layers.Layer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Precedes Keras's class among the bases of a layer.

    It has no state: a change of class alone turns a layer of Keras's into one of these.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        """The reason why Keras's own code computes this layer as it is configured; None if the kernel does.

        Args:
            inputs: a tensor to be computed; None: any tensor of the rank that the layer was built for, if it was.
        """
        return None

    @property
    def supports_jit(self) -> bool:
        """True if XLA can compile the layer. Keras reads it before it resolves `jit_compile="auto"`."""
        return self.__dict__.get("supports_jit", True) and (xla.fault is None or self.why_not() is not None)

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self.__dict__["supports_jit"] = value  # where Keras's own layers store it


def register(layer: _Class) -> _Class:
    """Registers the class for saved models, as `fusedops>` and its name."""
    return keras.saving.register_keras_serializable(package="fusedops")(layer)


def unfused_input(inputs: Any) -> str | None:
    """The reason why the kernel does not take these inputs; None for dense floating-point tensors."""
    if inputs is None:
        return None
    if not isinstance(inputs, (tf.Tensor, tf.Variable, keras.Variable)):
        return f"the input is a {type(inputs).__name__}"
    dtype = tf.as_dtype(inputs.dtype)  # a string, of a keras.Variable
    return None if dtype in FLOATING else f"the input is {dtype.name}"


def unfused_axis(layer: Any, inputs: Any) -> str | None:
    """The reason why the kernel does not take this axis; None for the last dimension (of the inputs, if given)."""
    axis = layer.axis
    if isinstance(axis, (list, tuple)):
        if len(axis) != 1:
            return f"axis {list(axis)} is not one"
        axis = axis[0]
    rank = _built_rank(layer) if inputs is None else inputs.shape.rank
    if axis == -1 or axis + 1 == rank:
        return None
    if inputs is None and rank is None and axis >= 0:  # never built, like the softmax in Keras's attention
        return None
    return f"axis {axis} is not the last"


def _built_rank(layer: Any) -> int | None:
    config = layer.get_build_config()
    return len(config["input_shape"]) if config else None


def parameter(variable: Any, x: tf.Tensor) -> Any:
    """A weight for the kernel's call with x: as it is stored, or cast to x's dtype.

    Under a mixed policy Keras rounds float32 weights to x's 16 bits; the kernel computes with all of their bits.
    """
    if variable is None:
        return None
    with AutocastScope(None):
        value = variable.value
    stored, dtype = value.dtype, tf.as_dtype(x.dtype)
    if stored is dtype or (stored is tf.float32 and dtype in _HALF):  # each dtype is one object
        return value
    return tf.cast(value, dtype)
