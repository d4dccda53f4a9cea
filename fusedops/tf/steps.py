"""The gradient function of an operator with a declared derivative: text generated from its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fusedops.declarations import Attribute, Operator
from fusedops.derivatives import Derivative, TakenStep
from fusedops.tf import calls, internals, text
from fusedops.tf.library import RAW, TABLE


@functools.cache
def _derivative(name: str) -> Derivative:
    return Derivative(TABLE, TABLE[name])


def evaluation(
    operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[str], wanted: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    """The gradient function of nodes with these inputs and encoded attributes. Unwanted gradients are None."""
    derivative = _derivative(operator.name)
    outputs = zip(derivative.upstream, operator.outputs, strict=True)
    flowing = tuple(name for name, output in outputs if not output.saved)  # TensorFlow makes zeros of absent ones
    given = tuple(name for name in derivative.deciding if name in inputs)
    taken = derivative.taken(tuple(wanted), flowing, given)
    known: dict[str, Any] = {"_Eager": internals.EagerTensor, "_dense": dense, "_identity": tf.identity, **calls.KNOWN}
    for i, step in enumerate(taken):
        if step.op is not None:
            op = TABLE[step.op]
            known |= {f"_{x.name}{i}": _value(x, step, attributes) for x in op.attributes}
            known[calls.raw_name(op)] = RAW[op.name]
    name = f"gradient_of_{operator.name}"
    head = f"def {name}(_op, {', '.join(f'_{dy}' for dy in derivative.upstream)}):"
    return text.function("\n    ".join([head, *_lines(operator, inputs, flowing, taken)]), name, {}, known)


def _lines(
    operator: Operator, inputs: Sequence[str], flowing: Sequence[str], taken: Sequence[TakenStep]
) -> Iterator[str]:
    for name in flowing:
        yield f"if type(_{name}) is not _Eager: _{name} = _dense(_{name})"
    yield "_inputs, _outputs = _op.inputs, _op.outputs"
    tensors = {name: f"_{name}" for name in flowing}
    tensors |= {name: f"_inputs[{i}]" for i, name in enumerate(inputs)}
    tensors |= {x.name: f"_outputs[{i}]" for i, x in enumerate(operator.outputs)}
    gradients = {}
    for i, step in enumerate(taken):
        values = tensors
        if step.op is not None:
            op = TABLE[step.op]
            for x, read in zip(op.inputs, step.inputs, strict=True):
                tensor = tensors.get(read or "")
                value = f"[{tensor or ''}]" if x.kind == "optional" else tensor
                yield f"{calls.variable(x)} = {value}"
            for attribute in op.attributes:
                yield f"{calls.variable(attribute)} = _{attribute.name}{i}"
            yield from calls.execution(op, f"_results{i}")
            one = len(step.outputs) == 1
            values = {y: f"_results{i}" if one else f"_results{i}[{k}]" for k, y in enumerate(step.outputs)}
        gradients.update({name: values[source] for name, source in step.gradients})
    shown = [gradients.get(name, "None") for name in inputs]
    # TensorFlow's tape never frees a gradient that is returned for two sources, not even that of tf.add.
    once = [f"_identity({x})" if x != "None" and x in shown[:i] else x for i, x in enumerate(shown)]
    yield f"return [{', '.join(once)}]"


def _value(attribute: Attribute, step: TakenStep, attributes: Mapping[str, Any]) -> Any:
    """The encoded value of an attribute in a step."""
    needs, passed = dict(step.needs), {x.attribute: x for x in step.attributes}
    if attribute.name in needs:
        return needs[attribute.name]
    if attribute.name not in passed:
        return calls.encoded_default(attribute)
    value = attributes[passed[attribute.name].source]
    return not value if passed[attribute.name].negated else value


def dense(dy: Any) -> tf.Tensor | None:
    """An upstream gradient as a dense tensor: that of a gather is sparse."""
    return dy if dy is None or isinstance(dy, tf.Tensor) else tf.convert_to_tensor(dy)
