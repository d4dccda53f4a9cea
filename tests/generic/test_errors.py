"""Every bad call is refused with its error message: the same in both frameworks, eager, compiled and traced."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers import float8
from tests.helpers.bad_calls import CASES, arguments, as_function, graph_message, unknown_size_message
from tests.helpers.frameworks import Backend
from tests.helpers.specification import Sample, Specification
from tests.specifications import BUILT_IN, SPECIFICATIONS, WITH_SCALARS, scalars


@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_a_bad_call_is_refused_eagerly(any_backend, operator, bad):
    with pytest.raises(any_backend.errors, match=re.escape(bad.sentence)):
        any_backend.call(operator.name, arguments(any_backend, bad), bad.options)


@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_a_bad_call_is_refused_when_compiled(any_backend, operator, bad):
    function, tensors = as_function(any_backend, operator, bad)
    with pytest.raises(any_backend.errors, match=graph_message(operator, bad)):
        any_backend.traced(function)(*tensors)


@pytest.mark.parametrize("known", ["rank", "none"])
@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_a_bad_call_of_unknown_shapes_is_refused(tf_backend, operator, bad, known):
    """The kernel raises the same message if the graph knows no shape. With a known rank, which may already be wrong,
    the graph writes a question mark for an unknown size."""
    tf = tf_backend.tf
    function, tensors = as_function(tf_backend, operator, bad)
    shapes = [[None] * x.shape.rank if known == "rank" else None for x in tensors]
    signature = [tf.TensorSpec(shape, x.dtype) for x, shape in zip(tensors, shapes, strict=True)]
    sentence = (unknown_size_message if known == "rank" else graph_message)(operator, bad)
    with pytest.raises(tf_backend.errors, match=sentence):
        tf.function(function, input_signature=signature)(*tensors)


CHOICES = [case for case in CASES if "must be one of" in case.values[1].sentence]


@pytest.mark.parametrize(("operator", "bad"), CHOICES)
def test_an_invalid_choice_is_refused(any_backend, operator, bad):
    """The class of the error is the same in both frameworks, eager and traced."""
    function, tensors = as_function(any_backend, operator, bad)
    traced = compiled(any_backend, function)
    for call in (function, traced):
        with pytest.raises(ValueError, match=re.escape(bad.sentence)):
            call(*tensors)


def test_a_choice_may_be_a_subclass_of_str(any_backend):
    class Choice(str, enum.Enum):
        relu = "relu"

    x = any_backend.tensor(np.array([-1.0, 2.0]), "float32")
    (y,) = any_backend.call("bias_act", {"x": x}, {"activation": Choice.relu})
    assert any_backend.to_numpy(y).tolist() == [0, 2]


def compiled(backend: Backend, function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function. torch's compiler leaves code that raises to Python, unless the full graph is requested."""
    if backend.framework != "torch":
        return backend.traced(function)
    backend.torch.compiler.reset()
    return backend.torch.compile(function, backend="eager")


@pytest.mark.parametrize(("operator", "bad"), CHOICES)
def test_raw_operators_know_the_choices(torch_backend, operator, bad):
    inputs = arguments(torch_backend, bad)
    with pytest.raises(RuntimeError, match=re.escape(bad.sentence)):
        getattr(torch_backend.torch.ops.fusedops, operator.name)(*inputs.values(), **bad.options)


def test_every_declared_choice_is_tested(torch_cpu):
    """All except those of results in 8 bits, which test_float8.py tests."""
    from fusedops.torch.library import TABLE

    declared = {
        (name, attribute.name)
        for name, operator in TABLE.items()
        for attribute in operator.attributes
        if attribute.choices and not name.endswith("_backward") and name not in float8.SIGNATURES
    }
    assert declared == {(case.values[0].name, *case.values[1].options) for case in CHOICES}


@pytest.mark.parametrize("size", [1021, 1022, 1023, 5000])
def test_a_long_error_message_is_not_cut(torch_cpu, size):
    """Also when the compiler infers shapes, and with a multibyte character at the end of the buffer."""
    torch, word = torch_cpu.torch, "ä" * size
    with torch._subclasses.FakeTensorMode():
        x = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match=f"got '{word}'"):
            torch.ops.fusedops.bias_act(x, None, word)


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
@pytest.mark.parametrize("value", ["2.5", np.True_, 10**400, None], ids=["str", "bool", "large", "None"])
def test_scalars_that_are_no_numbers(any_backend, spec, value, random):
    sample = spec.sample((2, 3), random)
    for name in scalars(spec):
        inputs = {**any_backend.tensors(sample, "float32"), name: value}
        of_expression = "a tensor or a number" if type(value) is int else "a tensor"
        expected = "a number or a tensor of one element" if spec in BUILT_IN else of_expression
        sentence = rf"fusedops\.{spec.name}: {name} must be {expected}; got {type(value).__name__}"
        with pytest.raises(TypeError, match=sentence):
            any_backend.call(spec.name, inputs, sample.options)


@pytest.mark.parametrize(
    ("operator", "option", "value", "expected"),
    [
        ("rms_norm", "eps", 10**400, "a number"),
        ("softmax", "scale", -(10**400), "a number"),
        ("cross_entropy", "ignore_index", 2**63, "an integer"),
        ("cross_entropy", "ignore_index", -(2**63) - 1, "an integer"),
        ("polynomial_activation", "coefficients", [1, 10**400], "a list of numbers"),
    ],
)
def test_attributes_that_no_kernel_could_hold(any_backend, operator, option, value, expected, random):
    sample = next(spec for spec in SPECIFICATIONS if spec.name == operator).sample((2, 3), random)
    inputs = {name: x for name, x in any_backend.tensors(sample, "float32").items() if name != option}
    with pytest.raises(TypeError, match=rf"fusedops\.{operator}: {option} must be {expected}; got "):
        any_backend.call(operator, inputs, {**sample.options, option: value})


def test_too_many_dimensions(any_backend, spec, random):
    """More dimensions than the core supports: 64."""
    sample = spec.sample((2, 2), random)
    inputs = {
        name: any_backend.reshape(x, (1,) * 63 + tuple(x.shape)) if np.ndim(sample.inputs[name]) else x
        for name, x in any_backend.tensors(sample, "float32").items()
    }
    with pytest.raises(
        any_backend.errors, match=rf"fusedops\.{spec.function}: \w+ must have at most 64 dimensions; got 6\d"
    ):
        any_backend.call(spec.name, inputs, sample.options)


def test_an_error_leaves_nothing_behind(any_backend, spec, random):
    """The next valid call succeeds."""
    sample = spec.sample((3, 4), random)
    inputs = any_backend.tensors(sample, "float32")
    expected = any_backend.to_numpy(any_backend.call(spec.name, inputs, sample.options)[0])
    with pytest.raises(any_backend.errors):
        any_backend.call(spec.name, arguments(any_backend, spec.bad[0]), spec.bad[0].options)
    got = any_backend.to_numpy(any_backend.call(spec.name, inputs, sample.options)[0])
    np.testing.assert_array_equal(got, expected)


def test_every_check_of_a_specification_is_of_its_operator(spec: Specification):
    assert spec.bad
    for bad in spec.bad:
        assert re.match(rf"fusedops\.{spec.function}: \w+ must .+; got .+", bad.sentence)


def test_unknown_keywords(any_backend, spec, random):
    sample = spec.sample((3, 4), random)
    inputs = any_backend.tensors(sample, "float32")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        any_backend.call(spec.name, inputs, {**sample.options, "nonsense": 1})


def test_unknown_keywords_of_traced_calls_are_refused(any_backend):
    def function(x):
        return any_backend.call("softmax", {"x": x}, {"dim": -1})

    traced = compiled(any_backend, function)
    with pytest.raises(
        TypeError, match=r"fusedops\.softmax: dim must be left out, since the last dimension is taken; "
    ):
        traced(any_backend.tensor([[1.0, 2.0]], "float32"))


def test_tensors_on_two_devices(torch_gpu, spec, random):
    """Refused before any launch, for each input on another device than the first."""
    samples: tuple[Sample, ...] = (spec.sample((3, 4), random), *spec.more_samples(random))
    sentence = rf"fusedops\.{spec.function}: \w+ must be on .+; got .+"
    for sample in {sample.tensors: sample for sample in reversed(samples)}.values():
        inputs = torch_gpu.tensors(sample, "float32")
        for name in sample.tensors if len(sample.tensors) > 1 else ():
            with pytest.raises(RuntimeError, match=sentence):
                torch_gpu.call(spec.name, {**inputs, name: inputs[name].cpu()}, sample.options)
