"""The base of the layers, and its checks of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import keras

from fusedops.keras_layers.backend import is_floating, own, rank_of
from fusedops.keras_layers.internals import AutocastScope

_HALF = ("float16", "bfloat16")

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
        return self.__dict__.get("supports_jit", True) and (own.xla_fault() is None or self.why_not() is not None)

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
    if not isinstance(inputs, own.TENSORS):
        return f"the input is a {type(inputs).__name__}"
    return None if is_floating(inputs.dtype) else f"the input is {own.name_of(inputs.dtype)}"


def unfused_axis(layer: Any, inputs: Any) -> str | None:
    """The reason why the kernel does not take this axis; None for the last dimension (of the inputs, if given)."""
    axis = layer.axis
    if isinstance(axis, (list, tuple)):
        if len(axis) != 1:
            return f"axis {list(axis)} is not one"
        axis = axis[0]
    rank = _built_rank(layer) if inputs is None else rank_of(inputs)
    if axis == -1 or axis + 1 == rank:
        return None
    if inputs is None and rank is None and axis >= 0:  # never built, like the softmax in Keras's attention
        return None
    return f"axis {axis} is not the last"


def _built_rank(layer: Any) -> int | None:
    config = layer.get_build_config()
    return len(config["input_shape"]) if config else None


def parameter(variable: Any, x: Any) -> Any:
    """A weight for the kernel's call with x: as it is stored, or cast to x's dtype.

    Under a mixed policy Keras rounds float32 weights to x's 16 bits; the kernel computes with all of their bits.
    """
    if variable is None:
        return None
    with AutocastScope(None):
        value = variable.value
    if value.dtype == x.dtype:
        return value
    dtype = own.name_of(x.dtype)
    if dtype in _HALF and own.name_of(value.dtype) == "float32":
        return value
    return keras.ops.cast(value, dtype)
