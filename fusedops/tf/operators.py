"""Every operator of the core as a function of TensorFlow tensors.

An operator is called as `operator(*inputs, **attributes)`, its inputs in the order of the declaration: tensors or
whatever TensorFlow makes one of, None for an absent optional, a number where a scalar is wanted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from fusedops import checks, declarations, loading
from fusedops.declarations import Attribute, Input, Operator, Output

LIBRARY = loading.library("tf")
_RAW = tf.load_op_library(str(LIBRARY))  # first: TensorFlow lists the operators that appear while it loads a library
DECLARED = declarations.read(ctypes.CDLL(str(LIBRARY)))

_ADVICE = {  # for what is a tensor to some of TensorFlow's functions
    tf.RaggedTensor: "call tf.ragged.map_flat_values(function, ...), or give to_tensor() of it",
    tf.SparseTensor: "give tf.sparse.to_dense of it",
}


def _bound(operator: Operator, raw: Callable[..., Any]) -> Callable[..., Any]:
    """`raw` is the Python function that TensorFlow generates: inputs, attributes, then dtypes of outputs."""
    count = len(operator.inputs)
    leading = next(i for i, input in enumerate(operator.inputs) if input.kind == "tensor")
    tensors = [(i, _converter(operator, input)) for i, input in enumerate(operator.inputs) if input.kind != "scalar"]
    scalars = [(i, _converter(operator, input)) for i, input in enumerate(operator.inputs) if input.kind == "scalar"]
    defaults = [_encoded(attribute, attribute.default) for attribute in operator.attributes]
    dtypes = [rule for rule in (_dtype_rule(operator, output) for output in operator.outputs) if rule]

    def call(*inputs: Any, **attributes: Any) -> Any:
        if len(inputs) != count:
            raise TypeError(f"{operator.name}() takes {count} inputs but {len(inputs)} were given")
        arguments = list(inputs)
        for i, convert in tensors:
            arguments[i] = convert(inputs[i])
        for i, convert in scalars:
            value = inputs[i]
            if checks.is_number(value):
                number = checks.number(operator, operator.inputs[i], value)
                arguments[i] = _constant(number, _compute_dtype(arguments[leading]))
            else:
                arguments[i] = convert(value)
        if attributes:
            checks.check_attributes(operator, attributes)
            for attribute, default in zip(operator.attributes, defaults, strict=True):
                given = attribute.name in attributes
                arguments.append(_encoded(attribute, attributes[attribute.name]) if given else default)
        else:
            arguments += defaults
        for dtype in dtypes:
            arguments.append(dtype(arguments))
        return raw(*arguments)

    call.__name__ = call.__qualname__ = operator.name
    return call


def _converter(operator: Operator, input: Input) -> Callable[[Any], Any]:
    """Makes the tensor that the raw operator takes: of an optional input, a list of at most one."""

    def tensor(value: Any) -> tf.Tensor:
        if isinstance(value, tf.Tensor):
            return value
        if isinstance(value, (str, bytes, bool, np.bool_)):  # TensorFlow would make a tensor of them
            raise checks.not_a_tensor(operator, input, value)
        try:
            return tf.convert_to_tensor(value)
        except (TypeError, ValueError) as error:
            raise checks.not_a_tensor(operator, input, value, _ADVICE.get(type(value), "")) from error

    if input.kind == "optional":
        return lambda value: [] if value is None else [tensor(value)]
    return tensor


def _dtype_rule(operator: Operator, output: Output) -> Callable[[list[Any]], tf.DType] | None:
    """How the dtype of an output follows from the arguments, unless TensorFlow takes it from an input itself."""
    for i, input in enumerate(operator.inputs):
        if output.dtype == f"compute({input.name})":
            return lambda arguments: _compute_dtype(arguments[i])
        if output.dtype == input.name and input.kind == "optional":
            return lambda arguments: arguments[i][0].dtype if arguments[i] else tf.float32
    return None


def _compute_dtype(tensor: tf.Tensor) -> tf.DType:
    return tf.float64 if tensor.dtype == tf.float64 else tf.float32


def _constant(number: Any, dtype: tf.DType) -> Any:
    """A number as a scalar input. A gradient is not wanted for it: `is_constant` knows it again."""
    value = np.float64(number)
    if tf.executing_eagerly():  # where no tape watches it, and TensorFlow itself makes a tensor of it
        return value if dtype == tf.float64 else float(value)
    return tf.stop_gradient(tf.constant(value, dtype))


def is_constant(tensor: tf.Tensor) -> bool:
    """Whether a tensor of a graph is a number that a caller gave."""
    return tensor.op.type == "StopGradient"


def _encoded(attribute: Attribute, value: Any) -> Any:
    """The value of an attribute as its OpDef takes it: doubles as text, which keeps all their bits."""
    if attribute.type in ("float", "floats"):
        return attribute.spelled(value)
    return int(value) if attribute.type == "int" else value


OPERATORS = SimpleNamespace(
    **{name: _bound(operator, getattr(_RAW, f"fusedops_{name}")) for name, operator in DECLARED.items()}
)
