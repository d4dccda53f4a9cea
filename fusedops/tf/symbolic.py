"""The public functions on the tensors without values of Keras's functional models, as in `keras.ops`.

This module imports Keras, and is imported only after Keras. TensorFlow itself imports Keras: a process that has
imported `fusedops.tf` loads models with these operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from fusedops.functions import OF_TENSORS
from fusedops.tf import functions, internals


class _Operation(keras.Operation):
    """Calls a public function. Its node in the graph of a model holds all arguments of the call."""

    function: ClassVar[str]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(functions, self.function)(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Like Keras's own method, which would put advice for the operation's author before the core's sentence.
        with internals.FuncGraph(self.name).as_default():
            args, kwargs = keras.tree.map_structure(_placeholder, (args, kwargs))
            outputs = self.call(*args, **kwargs)
        return keras.tree.map_structure(lambda y: keras.KerasTensor(y.shape, y.dtype.name), outputs)


def _is_symbol(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)


def _placeholder(value: Any) -> Any:
    if not _is_symbol(value):
        return value
    make = tf.compat.v1.sparse_placeholder if value.sparse else tf.compat.v1.placeholder
    return make(value.dtype, value.shape)


def _operation(name: str) -> type[_Operation]:
    """The class of a function's operations. Keras names them after the class: rms_norm, rms_norm_1 for RmsNorm."""
    kind = type(name.title().replace("_", ""), (_Operation,), {"function": name, "__module__": __name__})
    # Not in the layers' package, where Softmax is a layer.
    return keras.saving.register_keras_serializable(package="fusedops.tf")(kind)


_OPERATIONS = {name: _operation(name) for name in OF_TENSORS}


@keras.saving.register_keras_serializable(package="fusedops.tf")
class Expression(_Operation):
    """Calls an expression. Keras saves the constructor's arguments."""

    def __init__(self, expression: str, inputs: Sequence[str] | None = None, function: str | None = None) -> None:
        super().__init__()
        self.elementwise = functions.elementwise(expression, inputs=inputs, name=function)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.elementwise(*args, **kwargs)


@keras.saving.register_keras_serializable(package="fusedops.tf")
class LibraryFunction(_Operation):
    """Calls a function of a library that `load` has returned. Keras saves the constructor's arguments."""

    def __init__(self, library: str, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        module = sys.modules.get(f"fusedops.tf.{library}")
        if not hasattr(module, function):
            sentence = f"a model calls {function} of the library {library}, which this process has not loaded"
            raise ValueError(f"fusedops.tf: {sentence}; call fusedops.tf.load({library!r}, ...) before")
        self.loaded = getattr(module, function)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded(*args, **kwargs)


def are_given(arguments: Sequence[Any]) -> bool:
    """True if a symbolic tensor is among the arguments."""
    return any(map(_is_symbol, keras.tree.flatten(arguments)))


def call(function: Callable[..., Any], name: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The symbolic results of a call of a public function, or of a library's, by an operation of this name."""
    import fusedops.tf.keras  # noqa: F401  raises an error for a Keras that cannot run the functions

    operation: _Operation
    if getattr(functions, function.__name__, None) is function:
        operation = _OPERATIONS[function.__name__](name=name)
    else:
        operation = LibraryFunction(function.__module__.rpartition(".")[2], function.__name__, name=name)
    return operation.symbolic_call(*args, **kwargs)


def call_expression(given: Sequence[Any], values: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The symbolic results of a call of an expression. `given` are the expression's arguments."""
    import fusedops.tf.keras  # noqa: F401  as above

    return Expression(*given).symbolic_call(*values, **named)
