"""Every operator of the core as a function of TensorFlow tensors.

An operator is called as `operator(*inputs, **attributes)`, its inputs in the order of the declaration: tensors or
whatever TensorFlow makes one of, None for an absent optional, a number where a scalar is wanted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from fusedops import checks, declarations, loading
from fusedops.declarations import Attribute, Input, Operator

LIBRARY = loading.library("tf")
_RAW = tf.load_op_library(str(LIBRARY))  # first: TensorFlow lists the operators that appear while it loads a library
DECLARED = declarations.read(ctypes.CDLL(str(LIBRARY)))
if not hasattr(_RAW, f"fusedops_{next(iter(DECLARED))}"):
    raise ImportError(
        "fusedops.tf must be imported before another copy of its library is loaded: "
        f"TensorFlow knows the operators already, from elsewhere than {LIBRARY}"
    )

_ADVICE = {  # for what is a tensor to some of TensorFlow's functions
    tf.RaggedTensor: "call tf.ragged.map_flat_values(function, ...), or give to_tensor() of it",
    tf.SparseTensor: "give tf.sparse.to_dense of it",
}


def _bound(operator: Operator, raw: Callable[..., Any]) -> Callable[..., Any]:
    """`raw` is the Python function that TensorFlow generates: inputs, attributes, then dtypes of outputs.

    On small tensors a call costs what Python does around it: what can be known beforehand is looked up here, once.
    """
    count = len(operator.inputs)
    leading = next(i for i, input in enumerate(operator.inputs) if input.kind == "tensor")
    converters = [(i, _converter(operator, input)) for i, input in enumerate(operator.inputs) if input.kind != "scalar"]
    scalars = [(i, _converter(operator, input)) for i, input in enumerate(operator.inputs) if input.kind == "scalar"]
    encoders = [(attribute.name, _encoder(operator, attribute)) for attribute in operator.attributes]
    defaults = {attribute.name: attribute.default for attribute in operator.attributes}
    encoded_defaults = [encode(defaults[name]) for name, encode in encoders]
    dtypes = _dtype_rules(operator)
    keep = _keeper(operator)

    def call(*inputs: Any, **attributes: Any) -> Any:
        if len(inputs) != count:
            raise TypeError(f"{operator.name}() takes {count} inputs but {len(inputs)} were given")
        arguments = list(inputs)
        for i, convert in converters:
            arguments[i] = convert(inputs[i])
        for i, convert in scalars:
            value = inputs[i]
            if checks.is_number(value):
                number = checks.number(operator, operator.inputs[i], value)
                arguments[i] = _constant(number, _compute_dtype(arguments[leading]))
            else:
                arguments[i] = convert(value)
        if attributes:
            given = {**defaults, **attributes}
            if len(given) != len(encoders):
                checks.check_attributes(operator, attributes)
            for name, encode in encoders:
                arguments.append(encode(given[name]))
        else:
            arguments += encoded_defaults
        for dtype, outputs in dtypes:
            arguments += [dtype(arguments)] * outputs
        results = raw(*arguments)
        return keep(results) if keep and tf.executing_eagerly() else results

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

    def optional(value: Any) -> list[tf.Tensor]:
        if value is None:
            return []
        return [value] if isinstance(value, tf.Tensor) else [tensor(value)]

    return optional if input.kind == "optional" else tensor


def _dtype_rules(operator: Operator) -> list[tuple[Callable[[list[Any]], tf.DType], int]]:
    """How dtypes of outputs follow from the arguments, each with the number of outputs in a row that have it.

    None for an output whose dtype TensorFlow takes from an input itself.
    """
    inputs = {input.name: i for i, input in enumerate(operator.inputs)}
    own = {f"compute({name})": partial(_computed, i) for name, i in inputs.items()}
    own |= {x.name: partial(_of_optional, inputs[x.name]) for x in operator.inputs if x.kind == "optional"}
    return [
        (own[dtype], len(list(outputs)))
        for dtype, outputs in groupby(x.dtype for x in operator.outputs)
        if dtype in own
    ]


_LARGEST_KEPT_ZEROS = 10_000  # elements


def _keeper(operator: Operator) -> Callable[[Any], Any] | None:
    """Spares a tape the zeros for saved outputs, which get no gradient. None for an operator that saves nothing.

    An eager tape hands a gradient function zeros for every output without a gradient. Small ones it keeps from step to
    step; others it makes anew, with a scalar that goes to the GPU behind all the work queued there: each step waits.
    Behind FusedopsKeep(y, saved...), which is y, they have a gradient, of one element, that no formula looks at.
    """
    saved = [i for i, output in enumerate(operator.outputs) if output.saved]

    def keep(results: Any) -> Any:
        large = [results[i] for i in saved if results[i].shape.num_elements() > _LARGEST_KEPT_ZEROS]
        return (_RAW.fusedops_keep(results[0], large), *results[1:]) if large else results

    return keep if saved else None


def _computed(place: int, arguments: list[Any]) -> tf.DType:
    return _compute_dtype(arguments[place])


def _of_optional(place: int, arguments: list[Any]) -> tf.DType:
    return arguments[place][0].dtype if arguments[place] else tf.float32


def _compute_dtype(tensor: tf.Tensor) -> tf.DType:
    return tf.float64 if tensor.dtype is tf.float64 else tf.float32  # each dtype is one object


def _constant(number: Any, dtype: tf.DType) -> Any:
    """A number as a scalar input. A gradient is not wanted for it: `is_constant` knows it again."""
    value = np.float64(number)
    if tf.executing_eagerly():  # where no tape watches it, and TensorFlow itself makes a tensor of it
        return value if dtype == tf.float64 else float(value)
    return tf.stop_gradient(tf.constant(value, dtype))


def is_constant(tensor: tf.Tensor) -> bool:
    """Whether a tensor of a graph is a number that a caller gave."""
    return tensor.op.type == "StopGradient"


def _encoder(operator: Operator, attribute: Attribute) -> Callable[[Any], Any]:
    """Makes what the OpDef takes of an attribute's value: doubles become text, which keeps all their bits."""
    plain = {"float": float, "bool": bool, "str": str}.get(attribute.type)
    choices = attribute.choices
    spelled = attribute.type in ("float", "floats")

    def checked(value: Any) -> Any:
        checks.check_attributes(operator, {attribute.name: value})
        if spelled:
            return attribute.spelled(value)
        return int(value) if attribute.type == "int" else value

    if plain is float:
        return lambda value: repr(value) if type(value) is float else checked(value)
    if choices:
        return lambda value: value if type(value) is str and value in choices else checked(value)
    return lambda value: value if type(value) is plain else checked(value)


OPERATORS = SimpleNamespace(
    renamed=checks.renamed,
    **{name: _bound(operator, getattr(_RAW, f"fusedops_{name}")) for name, operator in DECLARED.items()},
)
