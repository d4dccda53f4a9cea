"""Operators over rows, under pressure: any length, values that cancel or overflow, nothing to sum, long sums."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from checks import check_backward, check_forward, tuples
from numerics import LONGEST, assert_accurate, assert_same_bits
from specification import Array, Sample, Specification, pairwise
from specifications import SPECIFICATIONS

BY_ROWS = [spec for spec in SPECIFICATIONS if spec.least_rank > 0 and spec.rows_are_independent]
LENGTHS = (1, 7, 33, 1000, 4097, 65_536, 262_144)


def named(*names: str) -> Any:
    """For each of these specifications."""
    by_name = {spec.name: spec for spec in SPECIFICATIONS}
    return pytest.mark.parametrize("spec", [by_name[name] for name in names], ids=str)


# Options with which a reference takes no time: NumPy has no erf of long doubles.
QUICK = {"bias_act": {"activation": "relu"}}


def rows(spec: Specification, count: int, columns: int, random: np.random.Generator) -> Sample:
    sample = spec.sample((count, *(1,) * (spec.least_rank - 2), columns), random)
    return Sample(sample.inputs, {**sample.options, **QUICK.get(spec.name, {})})


def with_x(sample: Sample, x: Array, **options: Any) -> Sample:
    """The sample with other values in its rows."""
    first = next(iter(sample.inputs))
    assert sample.inputs[first].shape == x.shape
    return Sample({**sample.inputs, first: x}, {**sample.options, **options}, sample.name)


def with_exact_sum(sample: Sample) -> Sample:
    """Without a residual, if there is one: x + residual is then not rounded."""
    residual = {name: np.zeros_like(value) for name, value in sample.inputs.items() if name == "residual"}
    return Sample({**sample.inputs, **residual}, sample.options)


def vectors(spec: Specification, sample: Sample) -> list[str]:
    """The parameters whose gradients are sums over rows."""
    return [name for name in spec.differentiable(sample) if name in spec.parameters and sample.inputs[name].ndim == 1]


def check(backend: Any, spec: Specification, sample: Sample, dtype: str, narrow: bool = False) -> None:
    inputs = backend.tensors(sample, dtype, spec if narrow else None)
    check_forward(backend, spec, sample, inputs)
    check_backward(backend, spec, sample, inputs)


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lengths(any_backend, spec, columns, dtype, random):
    check(any_backend, spec, rows(spec, 3, columns, random), dtype)


@pytest.mark.parametrize("spec", [spec for spec in BY_ROWS if spec.parameters], ids=str)
@pytest.mark.parametrize("columns", LENGTHS)
def test_lengths_with_float32_parameters(any_backend, spec, columns, random):
    check(any_backend, spec, rows(spec, 2, columns, random), "bfloat16", narrow=True)


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
def test_any_of_the_gradients(any_backend, spec, random):
    """Whichever are asked for together, each has the bits that it has among all."""
    sample = rows(spec, 37, 72, random)
    inputs = any_backend.tensors(sample, "float32")
    names = spec.differentiable(sample)
    _, expected = any_backend.gradients(spec.name, inputs, sample.options, names)
    for count in range(1, len(names) + 1):
        for wanted in itertools.combinations(names, count):
            _, got = any_backend.gradients(spec.name, inputs, sample.options, wanted)
            assert tuple(got) == wanted
            for name in wanted:
                label = f"{name} of {wanted}"
                assert_same_bits(any_backend.to_numpy(got[name]), any_backend.to_numpy(expected[name]), label)


@named("layer_norm", "add_layer_norm")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [33, 1000, 4097, 65_536])
def test_a_mean_far_from_zero(any_backend, spec, dtype, columns, random):
    """1e4, with a variance of 1e-2: a difference of mean squares would be noise, a mean rounded once is not."""
    sample = rows(spec, 5, columns, random)
    x = 1e4 + 0.1 * random.standard_normal((5, columns))
    sample = with_exact_sum(with_x(sample, x))
    inputs = any_backend.tensors(sample, dtype)
    wanted = spec.differentiable(sample)
    outputs, gradients = any_backend.gradients(spec.name, inputs, sample.options, wanted)
    upstream = [any_backend.to_numpy(dy).astype(LONGEST) for dy in any_backend.upstream(outputs)]
    arguments = {**any_backend.numpy(inputs, LONGEST), **sample.options}
    exact = spec.gradients(*upstream, **arguments)
    scale = spec.gradient_magnitude(*upstream, **arguments)
    # The mean is off by some half ulps of 1e4, so the normalized values by as many of 1e4 / 0.1.
    off = pairwise(columns) * np.finfo(dtype).eps / 2 * 1e5
    expected = tuples(spec.reference(**arguments))[0]
    np.testing.assert_array_less(abs(any_backend.to_numpy(outputs[0]) - expected), off * (1 + abs(expected)))
    for name in wanted:
        error = abs(any_backend.to_numpy(gradients[name]) - exact[name])
        np.testing.assert_array_less(error, 4 * off * (scale[name] + 1e-30), name)


@named("softmax", "cross_entropy")
@pytest.mark.parametrize("columns", [2, 33, 1000, 65_536])
def test_large_logits(any_backend, spec, columns, dtype, random):
    """Of ±1e4 and beside it: no overflow, and nothing lost where they are close."""
    sample = rows(spec, 6, columns, random)
    x = 1e4 * random.choice([-1.0, 1.0], size=(6, columns))
    x[2:4] = 1e4 + random.standard_normal((2, columns))
    x[4:] = -1e4 + random.standard_normal((2, columns))
    check(any_backend, spec, with_x(sample, x), dtype)


@named("softmax")
@pytest.mark.parametrize("columns", LENGTHS)
def test_rows_with_nothing_kept(any_backend, spec, columns, dtype, random):
    """Zeros, with zero gradients, whatever is masked away there."""
    x = random.standard_normal((4, columns))
    x[1], x[2, ::2] = np.nan, np.inf
    mask = np.ones((4, columns), bool)
    mask[1:3] = False
    sample = Sample({"x": x, "mask": mask})
    inputs = any_backend.tensors(sample, dtype)
    (y,), gradients = any_backend.gradients(spec.name, inputs, {}, ("x",))
    for result in (y, gradients["x"]):
        np.testing.assert_array_equal(any_backend.to_numpy(result)[1:3].astype(float), 0)
    kept = Sample({"x": x[::3].copy(), "mask": mask[::3].copy()})
    check(any_backend, spec, kept, dtype)


@named("softmax")
def test_more_rows_than_columns_of_a_causal_matrix(any_backend, spec, dtype, random):
    """The first rows have nothing left."""
    sample = Sample({"x": random.standard_normal((2, 7, 3))}, {"causal": True})
    inputs = any_backend.tensors(sample, dtype)
    (y,), gradients = any_backend.gradients(spec.name, inputs, sample.options, ("x",))
    for result in (y, gradients["x"]):
        np.testing.assert_array_equal(any_backend.to_numpy(result)[:, :4].astype(float), 0)
    np.testing.assert_array_equal(any_backend.to_numpy(y)[:, 4].astype(float), [[1, 0, 0]] * 2)
    check(any_backend, spec, sample, dtype)


@named("cross_entropy")
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("reduction", "loss"), [("mean", np.nan), ("sum", 0), ("none", [0, 0, 0])])
def test_all_labels_ignored(any_backend, spec, dtype, label_smoothing, reduction, loss, random):
    """A mean of nothing is NaN, as PyTorch's is; the gradient is zero."""
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    sample = Sample({"logits": random.standard_normal((3, 33)), "labels": np.full(3, -100)}, options)
    inputs = any_backend.tensors(sample, dtype)
    (got,), gradients = any_backend.gradients(spec.name, inputs, options, ("logits",))
    np.testing.assert_array_equal(any_backend.to_numpy(got), loss)
    np.testing.assert_array_equal(any_backend.to_numpy(gradients["logits"]).astype(float), 0)


OUT_OF_RANGE = [-1, 5, 2**31 - 1, -(2**31), -99]


@named("cross_entropy")
@pytest.mark.parametrize("label", [*OUT_OF_RANGE, 2**40])
@pytest.mark.parametrize("integers", ["int32", "int64"])
def test_labels_out_of_range(any_backend, spec, label, integers, random):
    """On the CPU an error; on a GPU, which cannot raise one, NaN: for that row and its gradient alone."""
    if label > np.iinfo(integers).max:
        pytest.skip("no label of this type")
    labels = np.array([1, label, 4], integers)
    inputs = any_backend.tensors(Sample({"logits": random.standard_normal((3, 5)), "labels": labels}), "float32")
    options = {"reduction": "none"}
    if any_backend.device == "cpu":
        with pytest.raises(any_backend.errors, match=rf"fusedops\.cross_entropy: labels must .+; got {label}"):
            any_backend.call(spec.name, inputs, options)
        return
    (loss,), gradients = any_backend.gradients(spec.name, inputs, options, ("logits",))
    for result in (loss, gradients["logits"]):
        wrong = np.isnan(any_backend.to_numpy(result).reshape(3, -1))
        assert wrong[1].all() and not wrong[[0, 2]].any()
    (loss,), _ = any_backend.gradients(spec.name, inputs, {"reduction": "mean"}, ("logits",))
    assert np.isnan(any_backend.to_numpy(loss))


NORMS = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm")


@named("add_rms_norm", "add_layer_norm")
def test_the_norm_of_a_sum(any_backend, spec, dtype, random):
    """x + residual and its norm have the bits of two operators, one after the other; also where the sum overflows."""
    sample = rows(spec, 6, 33, random)
    sample.inputs["x"][1, 3], sample.inputs["residual"][1, 3] = np.finfo(np.float16).max, np.finfo(np.float16).max
    inputs = any_backend.tensors(sample, dtype)
    y, s = any_backend.call(spec.name, inputs)
    (sum_,) = any_backend.call("add", {"x": inputs["x"], "y": inputs.pop("residual")})
    (norm,) = any_backend.call(spec.name.removeprefix("add_"), {**inputs, "x": sum_})
    assert_same_bits(any_backend.to_numpy(s), any_backend.to_numpy(sum_))
    assert_same_bits(any_backend.to_numpy(y), any_backend.to_numpy(norm))


@named(*NORMS)
def test_without_eps(any_backend, spec, dtype, random):
    """The rows that have a norm are as ever; a row of zeros has none."""
    sample = rows(spec, 6, 33, random)
    check(any_backend, spec, with_x(sample, sample.inputs["x"], eps=0.0), dtype)
    zeros = {name: np.zeros_like(value) if np.ndim(value) == 2 else value for name, value in sample.inputs.items()}
    y = any_backend.call(spec.name, any_backend.tensors(Sample(zeros), dtype), {"eps": 0.0})[0]
    assert np.isnan(any_backend.to_numpy(y).astype(float)).all()


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
@pytest.mark.parametrize("columns", [1, 33, 4097])
def test_rows_of_zeros(any_backend, spec, columns, dtype, random):
    sample = rows(spec, 4, columns, random)
    check(any_backend, spec, with_x(sample, np.zeros_like(next(iter(sample.inputs.values())))), dtype)


@named(*NORMS)
@pytest.mark.parametrize("columns", [1, 33, 4097])
def test_rows_of_one_value(any_backend, spec, columns, dtype, random):
    """Without variance: a layer_norm divides by the root of eps alone."""
    sample = rows(spec, 4, columns, random)
    x = np.repeat([[1.0], [-3.0], [0.5], [1024.0]], columns, 1)
    check(any_backend, spec, with_exact_sum(with_x(sample, x)), dtype)


WITH_VECTORS = [spec for spec in BY_ROWS if vectors(spec, rows(spec, 2, 3, np.random.default_rng(0)))]
MANY = 1_000_000


@pytest.mark.parametrize("spec", WITH_VECTORS, ids=str)
@pytest.mark.parametrize("values", ["random", "constant"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_a_million_rows(any_backend, spec, values, dtype, random):
    """Within the error of a pairwise sum in float32; also where all terms are rounded in the same direction."""
    sample = with_exact_sum(rows(spec, MANY, 3, random))
    if values == "constant":
        constant = {
            name: np.broadcast_to(value[:1], value.shape) if value.shape[0] == MANY else value
            for name, value in sample.inputs.items()
        }
        sample = Sample(constant, sample.options)
    inputs = any_backend.tensors(sample, dtype, spec)  # float32 parameters: their gradients are not rounded to 16 bits
    outputs = any_backend.call(spec.name, inputs, sample.options)
    if values == "constant":
        thirds = [np.full(tuple(y.shape), 1 / 3) * [1, -0.7, 0.1] for y in outputs]
        upstream = tuple(any_backend.tensor(third, dtype) for third in thirds)
    else:
        upstream = any_backend.upstream(outputs)
    names = tuple(vectors(spec, sample))
    _, gradients = any_backend.gradients(spec.name, inputs, sample.options, names, upstream)
    arguments = {**any_backend.numpy(inputs, LONGEST), **sample.options}
    wide = [any_backend.to_numpy(dy).astype(LONGEST) for dy in upstream]
    exact, magnitude = spec.gradients(*wide, **arguments), spec.gradient_magnitude(*wide, **arguments)
    for name in names:
        got = any_backend.to_numpy(gradients[name])
        assert got.dtype == np.float32
        roundings = pairwise(MANY) + pairwise(3)  # of the sum, and of what a row's statistics make of each term
        assert_accurate(got, exact[name], magnitude[name], roundings, f"{sample}: gradient of {name}")
