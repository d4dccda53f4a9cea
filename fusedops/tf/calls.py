"""The Python function of an operator over TensorFlow's tensors: what its call does before and after the kernel."""

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

_ADVICE = {  # for what is a tensor to some of TensorFlow's functions
    tf.RaggedTensor: "call tf.ragged.map_flat_values(function, ...), or give to_tensor() of it",
    tf.SparseTensor: "give tf.sparse.to_dense of it",
}


def _common(*dtypes: tf.DType) -> int:
    """The dtype that inputs have together, as element_dtype() of the core finds it."""
    for dtype in dtypes:
        if dtype is tf.bfloat16 or dtype is tf.float16:
            return int(dtype.as_datatype_enum)
    return int(next((x for x in dtypes if x.is_floating), tf.float32).as_datatype_enum)


KNOWN = {  # to the lines of `execution`
    "_Float64": tf.float64,
    "_common": _common,
    "_Named": {x.name: x.as_datatype_enum for x in DTYPES},
}
_LARGEST_KEPT_ZEROS = 10_000  # elements


class _Spelled(dict[float, str]):
    """Floats as the OpDef takes them: as text, which keeps all their bits."""

    def __missing__(self, value: float) -> str:
        spelled = repr(value)
        if value and len(self) < 1000:  # 0.0 and -0.0 are one key
            self[value] = spelled
        return spelled


_SPELLED = _Spelled()


def function(operator: Operator, raw: Callable[..., Any], keep: Callable[..., Any]) -> Callable[..., Any]:
    """`raw` is the Python function that TensorFlow generates: inputs, attributes, then dtypes of outputs."""
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
    """What the lines of a function call an argument: not as something of Python's, which the lines may speak of."""
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
    if operator.outputs:  # a graph has an operation as the result of a call for its effect alone
        yield "return _results"


def execution(operator: Operator, results: str) -> Iterator[str]:
    """The lines that call the generated function and name its results.

    Inputs are tensors, or lists of them, at most one of an optional input, and attributes are encoded, each in its
    `variable`.
    """
    dtypes = _dtypes(operator)
    names = {dtype: f"_dtype{i}" for i, dtype in enumerate(dict.fromkeys(dtypes))}
    for dtype, name in names.items():
        yield f"{name} = {dtype}"
    arguments = [*map(variable, operator.inputs), *map(variable, operator.attributes), *map(names.__getitem__, dtypes)]
    arguments += [f"{_dtype_of_variables(x)}.as_datatype_enum" for x in operator.inputs if x.updated]
    yield f"{results} = {raw_name(operator)}({', '.join(arguments)})"


def _dtype_of_variables(x: Input) -> str:
    """What the lines call the dtype of variables, of which they have the handles alone."""
    return f"_dtype_{x.name}"


def _dtype_of(x: Input) -> str:
    """That of an input, or of the tensors of a list."""
    if x.updated:
        return _dtype_of_variables(x)
    return f"{variable(x)}[0].dtype" if x.kind == "list" else f"{variable(x)}.dtype"


def raw_name(operator: Operator) -> str:
    return f"_raw_{operator.name}"


def _dtypes(operator: Operator) -> list[str]:
    """The dtype of each output that does not have that of an input, computed from the inputs or chosen by an attribute:
    as a number, since what TensorFlow makes of a tf.DType, it makes in Python."""
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
    if isinstance(value, (str, bytes, bool, np.bool_)):  # TensorFlow would make a tensor of them
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
    for i, x in enumerate(tensors[1:], 1):  # TensorFlow's own error would not say which
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
    # Of Keras's own, whose public `value` is a cast copy where a layer of mixed precision is called.
    found = value if isinstance(value, tf.Variable) else getattr(value, "_value", None)
    if not isinstance(found, tf.Variable):
        got = type(value).__name__
        name = checks.named(input, item)
        raise TypeError(f"fusedops.{operator.name}: {name} is updated, and must be a tf.Variable; got {got}")
    return found


def _other_dtype(operator: Operator, input: Input, item: int, expected: tf.DType, got: tf.DType) -> Exception:
    """In the core's words."""
    expects = f"{input.name}[{item}] must have {input.name}[0]'s dtype, {expected.name}"
    return tf.errors.InvalidArgumentError(None, None, f"fusedops.{operator.name}: {expects}; got {got.name}")


def _none(operator: Operator, input: Input) -> Exception:
    sentence = f"fusedops.{operator.name}: {input.name} must have at least one tensor; got none"
    return tf.errors.InvalidArgumentError(None, None, sentence)


def _scalar(operator: Operator, input: Input, value: Any, dtype: tf.DType) -> Any:
    """A gradient is not wanted for a number: `is_constant` knows it again."""
    if not checks.is_number(value):
        return tensor(operator, input, value)
    return constant(checks.number(operator, input, value), dtype)


def constant(number: float, dtype: tf.DType, rank: int = 0) -> Any:
    """A number beside tensors that are computed in float64 if `dtype` is, else in float32; in graphs, of this rank."""
    is_float64 = dtype is tf.float64  # each dtype is one object
    if tf.executing_eagerly():  # where no tape watches it, and TensorFlow itself makes a tensor of it
        return np.float64(number) if is_float64 else number
    return tf.stop_gradient(tf.constant(number, tf.float64 if is_float64 else tf.float32, [1] * rank))


def is_constant(tensor: tf.Tensor) -> bool:
    """Whether a tensor of a graph is a number that a caller gave."""
    return tensor.op.type == "StopGradient"


def encode(operator: Operator, attribute: Attribute, value: Any) -> Any:
    """What the OpDef takes of a value that is not of the attribute's very type, or is refused."""
    checks.check_attribute(operator, attribute, value)
    if attribute.type in ("float", "floats"):
        return attribute.spelled(value)
    return int(value) if attribute.type == "int" else value


def encoded_default(attribute: Attribute) -> Any:
    """The default as the OpDef takes it. The core has checked it."""
    if attribute.type == "float":
        return _SPELLED[attribute.default]
    return attribute.spelled(attribute.default) if attribute.type == "floats" else attribute.default


def _refuse_tapes(operator: Operator, tensors: Sequence[tf.Tensor]) -> None:
    """For what is not differentiable: before it asks for a gradient function, a tape would make zeros in 8 bits, which
    TensorFlow cannot, and it would not ask at all for a result in 8 bits alone."""
    if recording.may_need_gradient() and any(map(recording.is_watched, tensors)):
        raise no_gradient(operator)


def no_gradient(operator: Operator) -> LookupError:
    return LookupError(f"fusedops.{operator.name}: there is no gradient; give it tf.stop_gradient(x) of its inputs")


def _saved(operator: Operator) -> list[int]:
    return [i for i, output in enumerate(operator.outputs) if output.saved]


def _keep(operator: Operator, keep: Callable[..., Any], results: Any) -> Any:
    """Spares a tape the zeros for saved outputs, which get no gradient.

    An eager tape hands a gradient function zeros for every output without a gradient. Small ones it keeps from step to
    step; others it makes anew, with a scalar that goes to the GPU behind all the work queued there: each step waits.
    Behind FusedopsKeep(y, saved...), which is y, they have a gradient, of one element, that no formula looks at.
    """
    large = [results[i] for i in _saved(operator) if internals.size(results[i]) > _LARGEST_KEPT_ZEROS]
    return keep(results[0], large), *results[1:]
