"""The Python function of an operator over TensorFlow's tensors: the work of a call before and after the kernel."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fusedops import checks
from fusedops.declarations import Attribute, Input, Operator
from fusedops.tf import internals, recording, text
from fusedops.tf.library import DTYPES

_ADVICE = {  # for types that some of TensorFlow's functions take as tensors
    tf.RaggedTensor: "call tf.ragged.map_flat_values(function, ...), or give to_tensor() of it",
    tf.SparseTensor: "give tf.sparse.to_dense of it",
}


def _common(*dtypes: tf.DType) -> int:
    """The common dtype of inputs, as element_dtype() of the core determines it."""
    for dtype in dtypes:
        if dtype is tf.bfloat16 or dtype is tf.float16:
            return int(dtype.as_datatype_enum)
    return int(next((x for x in dtypes if x.is_floating), tf.float32).as_datatype_enum)


KNOWN = {  # constants in the lines of `execution`
    "_Float64": tf.float64,
    "_common": _common,
    "_Named": {x.name: x.as_datatype_enum for x in DTYPES},
}
_LARGEST_KEPT_ZEROS = 10_000  # elements


class _Spelled(dict[float, str]):
    """Floats as text, which keeps all their bits: the OpDef's form."""

    def __missing__(self, value: float) -> str:
        spelled = repr(value)
        if value and len(self) < 1000:  # 0.0 and -0.0 are one key
            self[value] = spelled
        return spelled


_SPELLED = _Spelled()


def function(operator: Operator, raw: Callable[..., Any], keep: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an operator. `raw`, which TensorFlow generates, takes inputs, attributes and output dtypes."""
    known: dict[str, Any] = {
        "_Eager": internals.EagerTensor,
        "_keep": partial(_keep, operator, keep),
        "_refuse_tapes": partial(_refuse_tapes, operator),
        "_size": internals.size,
        "_spelled": _SPELLED,
        **KNOWN,
        raw_name(operator): raw,
    }
    for input in operator.inputs:
        known[f"_tensor_{input.name}"] = partial(_converter(input), operator, input)
    for attribute in operator.attributes:
        known[f"_default_{attribute.name}"] = attribute.default
        known[f"_encode_{attribute.name}"] = partial(encode, operator, attribute)
    made = text.function("\n    ".join(_lines(operator)), operator.name, {}, known)
    others = {x.name: variable(x) for x in operator.attributes if variable(x) != x.name}
    if not others:
        return made
    return text.unconverted(lambda *inputs, **options: made(*inputs, **{others.get(x, x): options[x] for x in options}))


def variable(argument: Input | Attribute) -> str:
    """The name of an argument in the generated lines. It hides no builtin, since the lines may use one."""
    return f"{argument.name}_" if hasattr(builtins, argument.name) else argument.name


def _lines(operator: Operator) -> Iterator[str]:
    inputs = list(map(variable, operator.inputs))
    options = ["*", *(f"{variable(x)}=_default_{x.name}" for x in operator.attributes)] if operator.attributes else []
    yield f"def {operator.name}({', '.join([*inputs, '/', *options])}):"

    for x in sorted(operator.inputs, key=lambda x: x.kind == "scalar"):  # numbers become tensors like the leading one
        name, tensor = variable(x), f"_tensor_{x.name}"
        if x.updated:
            yield f"{name}, {_dtype_of_variables(x)} = {tensor}({name})"
        elif x.kind == "list":
            yield f"{name} = {tensor}({name})"
        elif x.kind == "optional":
            yield f"{name} = [] if {name} is None else [{name} if type({name}) is _Eager else {tensor}({name})]"
        else:
            more = f", {_dtype_of(operator.inputs[operator.leading])}" if x.kind == "scalar" else ""
            yield f"if type({name}) is not _Eager: {name} = {tensor}({name}{more})"

    for attribute in operator.attributes:
        name, encode = variable(attribute), f"_encode_{attribute.name}"
        if attribute.type == "float":
            yield f"{name} = _spelled[{name}] if type({name}) is float else {encode}({name})"
        elif attribute.type == "floats":
            yield f"{name} = {encode}({name})"
        else:
            yield f"if not ({checks.plain_attribute(replace(attribute, name=name))}): {name} = {encode}({name})"

    if not operator.differentiable and not operator.has_effects_or_lists:
        tensors = [f"*{variable(x)}" if x.kind == "optional" else variable(x) for x in operator.inputs]
        yield f"_refuse_tapes([{', '.join(tensors)}])"

    yield from execution(operator, "_results")

    saved = [f"_size(_results[{i}])" for i in _saved(operator)]
    if saved:
        large = " or ".join(f"{size} > {_LARGEST_KEPT_ZEROS}" for size in saved)
        yield f"if type(_results[0]) is _Eager and ({large}): return _keep(_results)"
    if operator.outputs:  # in a graph, a call for its effect alone would return an operation
        yield "return _results"


def execution(operator: Operator, results: str) -> Iterator[str]:
    """The lines that call the generated function and assign its results.

    They read each argument from its `variable`: inputs are tensors or lists of tensors, at most one for an optional
    input, and attributes are encoded.
    """
    dtypes = _dtypes(operator)
    names = {dtype: f"_dtype{i}" for i, dtype in enumerate(dict.fromkeys(dtypes))}
    for dtype, name in names.items():
        yield f"{name} = {dtype}"
    arguments = [*map(variable, operator.inputs), *map(variable, operator.attributes), *map(names.__getitem__, dtypes)]
    arguments += [f"{_dtype_of_variables(x)}.as_datatype_enum" for x in operator.inputs if x.updated]
    yield f"{results} = {raw_name(operator)}({', '.join(arguments)})"


def _dtype_of_variables(x: Input) -> str:
    """The name of the dtype of variables in the lines, which have only their handles."""
    return f"_dtype_{x.name}"


def _dtype_of(x: Input) -> str:
    """The dtype of an input, or of the tensors of a list."""
    if x.updated:
        return _dtype_of_variables(x)
    return f"{variable(x)}[0].dtype" if x.kind == "list" else f"{variable(x)}.dtype"


def raw_name(operator: Operator) -> str:
    return f"_raw_{operator.name}"


def _dtypes(operator: Operator) -> list[str]:
    """The dtypes of outputs that do not have an input's dtype: computed from inputs, or chosen by an attribute.

    They are numbers, since TensorFlow would convert a tf.DType in Python.
    """
    float32, float64 = tf.float32.as_datatype_enum, tf.float64.as_datatype_enum
    rules = {}
    for x in operator.inputs:
        name = variable(x)
        rules[f"compute({x.name})"] = f"{float64} if {_dtype_of(x)} is _Float64 else {float32}"
        if x.kind == "optional":
            rules[x.name] = f"{name}[0].dtype.as_datatype_enum if {name} else {float32}"
    tensors = [x for x in operator.inputs if x.kind not in ("optional", "list")]
    rules["common()"] = f"_common({', '.join(map(_dtype_of, tensors))})"
    rules.update({x.name: f"_Named[{variable(x)}]" for x in operator.attributes})
    return [rules[x.dtype] for x in operator.outputs if x.dtype in rules]


def tensor(operator: Operator, input: Input, value: Any) -> tf.Tensor:
    if isinstance(value, tf.Tensor):
        return value
    if isinstance(value, (str, bytes, bool, np.bool_)):  # TensorFlow would convert these
        raise checks.not_a_tensor(operator, input, value)
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise checks.not_a_tensor(operator, input, value, _ADVICE.get(type(value), "")) from error


def _converter(input: Input) -> Callable[..., Any]:
    plain: dict[str, Callable[..., Any]] = {"scalar": _scalar, "list": _tensors}
    variables: dict[str, Callable[..., Any]] = {"list": _handles}
    return variables.get(input.kind, _handle) if input.updated else plain.get(input.kind, tensor)


def _items(operator: Operator, input: Input, values: Any) -> Sequence[Any]:
    if isinstance(values, (list, tuple)):
        return values
    raise checks.not_a_tensor(operator, input, values)


def _tensors(operator: Operator, input: Input, values: Any) -> list[tf.Tensor]:
    items = _items(operator, input, values)
    tensors = [x if type(x) is internals.EagerTensor else tensor(operator, input, x) for x in items]
    for i, x in enumerate(tensors[1:], 1):  # TensorFlow's own error would not name it
        if x.dtype != tensors[0].dtype:
            raise _other_dtype(operator, input, i, tensors[0].dtype, x.dtype)
    if not tensors and operator.inputs[operator.leading] is input:
        raise _none(operator, input)
    return tensors


def _handles(operator: Operator, input: Input, values: Any) -> tuple[list[tf.Tensor], tf.DType]:
    """The handles of variables, and the dtype of their values."""
    variables = [_variable(operator, input, i, x) for i, x in enumerate(_items(operator, input, values))]
    if not variables:
        if operator.inputs[operator.leading] is input:
            raise _none(operator, input)
        return [], tf.float32
    for i, x in enumerate(variables):
        if x.dtype != variables[0].dtype:
            raise _other_dtype(operator, input, i, variables[0].dtype, x.dtype)
    return [x.handle for x in variables], variables[0].dtype


def _handle(operator: Operator, input: Input, value: Any) -> tuple[tf.Tensor, tf.DType]:
    found = _variable(operator, input, 0, value)
    return found.handle, found.dtype


def _variable(operator: Operator, input: Input, item: int, value: Any) -> Any:
    # `_value` of a keras.Variable: its public `value` is a cast copy while a layer of mixed precision is called.
    found = value if isinstance(value, tf.Variable) else getattr(value, "_value", None)
    if not isinstance(found, tf.Variable):
        got = type(value).__name__
        name = checks.named(input, item)
        raise TypeError(f"fusedops.{operator.function}: {name} is updated, and must be a tf.Variable; got {got}")
    return found


def _other_dtype(operator: Operator, input: Input, item: int, expected: tf.DType, got: tf.DType) -> Exception:
    """The error for a list of several dtypes, in the core's words."""
    expects = f"{input.name}[{item}] must have {input.name}[0]'s dtype, {expected.name}"
    return tf.errors.InvalidArgumentError(None, None, f"fusedops.{operator.function}: {expects}; got {got.name}")


def _none(operator: Operator, input: Input) -> Exception:
    sentence = f"fusedops.{operator.function}: {input.name} must have at least one tensor; got none"
    return tf.errors.InvalidArgumentError(None, None, sentence)


def _scalar(operator: Operator, input: Input, value: Any, dtype: tf.DType) -> Any:
    """A scalar input as a tensor. A number becomes a constant without a gradient, which `is_constant` recognizes."""
    if not checks.is_number(value):
        return tensor(operator, input, value)
    return constant(checks.number(operator, input, value), dtype)


def constant(number: float, dtype: tf.DType, rank: int = 0) -> Any:
    """A number for use with tensors: float64 if `dtype` is, else float32; in graphs with this rank."""
    is_float64 = dtype is tf.float64  # each dtype is one object
    if tf.executing_eagerly():  # no tape watches it, and TensorFlow itself converts it
        return np.float64(number) if is_float64 else number
    return tf.stop_gradient(tf.constant(number, tf.float64 if is_float64 else tf.float32, [1] * rank))


def is_constant(tensor: tf.Tensor) -> bool:
    """True if a tensor of a graph is a number that a caller gave."""
    return tensor.op.type == "StopGradient"


def encode(operator: Operator, attribute: Attribute, value: Any) -> Any:
    """The OpDef's form of a value that is not of exactly the attribute's type, or an error."""
    checks.check_attribute(operator, attribute, value)
    if attribute.type in ("float", "floats"):
        return attribute.spelled(value)
    return int(value) if attribute.type == "int" else value


def encoded_default(attribute: Attribute) -> Any:
    """The default in the OpDef's form. The core has checked it."""
    if attribute.type == "float":
        return _SPELLED[attribute.default]
    return attribute.spelled(attribute.default) if attribute.type == "floats" else attribute.default


def _refuse_tapes(operator: Operator, tensors: Sequence[tf.Tensor]) -> None:
    """Raises if a tape would record an operator that is not differentiable.

    A tape makes zeros before it asks for a gradient function, which TensorFlow cannot do in 8 bits. For results in 8
    bits alone it does not ask at all.
    """
    if recording.may_need_gradient() and any(map(recording.is_watched, tensors)):
        raise no_gradient(operator)


def no_gradient(operator: Operator) -> LookupError:
    return LookupError(f"fusedops.{operator.function}: there is no gradient; give it tf.stop_gradient(x) of its inputs")


def _saved(operator: Operator) -> list[int]:
    return [i for i, output in enumerate(operator.outputs) if output.saved]


def _keep(operator: Operator, keep: Callable[..., Any], results: Any) -> Any:
    """Spares a tape from making zeros for saved outputs, which get no gradient.

    An eager tape passes zeros to a gradient function for every output without a gradient. It caches small ones. Others
    it makes anew from a scalar, which is copied to the GPU behind all queued work: each step waits. Outputs that are
    inputs of FusedopsKeep(y, saved...), which returns y, have a gradient of one element, which no formula reads.
    """
    large = [results[i] for i in _saved(operator) if internals.size(results[i]) > _LARGEST_KEPT_ZEROS]
    return keep(results[0], large), *results[1:]
