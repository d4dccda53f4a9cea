"""The gradient formulas and the functions that they may use: the same in all frameworks, and no gradient silently
missing."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from fusedops import gradients, loading
from fusedops.derivatives import FormulaNames
from tests.helpers.frameworks import installed
from tests.helpers.numerics import rounded
from tests.helpers.specification import Sample
from tests.specifications import SPECIFICATIONS


def listed() -> set[str]:
    """The functions of `f` that the description of the formulas lists."""
    assert gradients.__doc__
    table = re.search(r"of all frameworks:\n\n(.*?)\n\n", gradients.__doc__, re.DOTALL)
    assert table
    names = (re.split(r"  +", line.strip())[0] for line in table[1].splitlines())
    return set(re.findall(r"(\w+)(?:,|\(|$)", "\n".join(re.sub(r"\(.*?\)", "", name) for name in names), re.MULTILINE))


@pytest.mark.parametrize("framework", loading.FRAMEWORKS)
def test_every_function_is_listed_and_there(framework):
    if not installed(framework):
        pytest.skip(f"{framework} is not installed")
    neutral = pytest.importorskip(f"fusedops.{framework}.neutral")
    assert set(neutral.FUNCTIONS) == listed()


def test_refused_gradients(torch_backend, random):
    """A gradient that is requested is an error, in every order and mode; the other gradients are unaffected."""
    from fusedops.torch.library import TABLE

    torch = torch_backend.torch
    for spec in SPECIFICATIONS:
        for name in spec.not_differentiable:
            samples = itertools.chain([spec.sample((2, 3, 4), random)], spec.more_samples(random))
            sample = next(sample for sample in samples if name in sample.floating)
            inputs = torch_backend.tensors(sample, "float64")
            of_operator, of_function = (
                re.escape(f"fusedops.{owner}: {name} has no gradient; detach it")
                for owner in (TABLE[spec.operator].function, spec.function)
            )
            leaves = torch_backend.leaves(inputs, (*spec.differentiable(sample), name))
            outputs = torch_backend.call(spec.name, leaves, sample.options)
            with pytest.raises(RuntimeError, match=of_operator):
                sum(y.sum() for y in outputs).backward()
            duals = {**inputs}
            with pytest.raises(RuntimeError, match=of_function), torch.autograd.forward_ad.dual_level():
                duals[name] = torch.autograd.forward_ad.make_dual(inputs[name], torch.ones_like(inputs[name]))
                torch_backend.call(spec.name, duals, sample.options)


def test_gradients_that_tensorflow_has_not(tf_backend, spec, random):
    """The gradient is None, as for an integer, eagerly and in a graph."""
    tf = tf_backend.tf
    sample = spec.sample((2, 3, 4), random)
    inputs = tf_backend.tensors(sample, "float32")
    others = [inputs[name] for name in sample.tensors if name not in spec.differentiable(sample)]

    def compute():
        with tf.GradientTape() as tape:
            tape.watch([x for x in others if x.dtype.is_floating])
            outputs = tf_backend.call(spec.name, inputs, sample.options)
        return tape.gradient(outputs, others)

    assert all(gradient is None for gradient in compute())
    assert all(gradient is None for gradient in tf.function(compute)())


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_second_order_in_16_bits(any_backend, spec, narrow, random):
    """Upstream gradients of 300 and 300: intermediate products exceed float16, final results do not. Second derivatives
    are close to those that float64 gives for the same numbers."""
    sample = spec.low_curvature_sample(random)
    values = {name: rounded(sample.inputs[name], narrow).astype(np.float64) for name in sample.floating}
    sample = Sample({**sample.inputs, **values}, sample.options)
    found = []
    for dtype in (narrow, "float64"):
        signs = np.random.default_rng(0)

        def upstream(y, signs=signs):
            return any_backend.tensor(signs.choice([-300.0, 300.0], size=tuple(y.shape)), any_backend.dtype_of(y))

        inputs = any_backend.tensors(sample, dtype)
        gradients = any_backend.second_gradients(
            spec.name, inputs, sample.options, spec.differentiable(sample), upstream
        )
        found.append([any_backend.to_numpy(g).astype(np.float64) for g in gradients])
    largest = float(ml_dtypes.finfo("float16").max)
    for got, expected in zip(*found, strict=True):
        fits = np.abs(expected) < largest
        # A dozen roundings, relative to the largest element: sums cancel.
        limit = 6 * float(ml_dtypes.finfo(narrow).eps) * np.abs(expected[fits]).max(initial=0)
        np.testing.assert_allclose(got[fits], expected[fits], rtol=0, atol=limit)


def test_saved_outputs_have_no_gradient(torch_cpu, spec, random):
    """The public function hides them; the raw operator returns them without a history."""
    torch = torch_cpu.torch
    from fusedops.torch.library import TABLE

    sample = spec.sample((2, 3), random)
    leaves = torch_cpu.leaves(torch_cpu.tensors(sample, "float32"), spec.differentiable(sample))
    public = torch_cpu.call(spec.name, leaves, sample.options)
    assert all(type(y) is torch.Tensor and y.requires_grad for y in public)
    declared = TABLE[spec.operator]
    names = [input.name for input in declared.inputs]
    options = {**{name: x for name, x in leaves.items() if name in names}, **sample.options}
    outputs = getattr(torch.ops.fusedops, spec.operator)(**options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert [y.requires_grad for y in outputs] == [not output.saved for output in declared.outputs]
    assert len(public) == len(spec.outputs) <= sum(not output.saved for output in declared.outputs)


def test_attributes_of_strings(any_backend, random):
    """Python's and NumPy's strings, also compiled."""
    x = any_backend.tensor(random.standard_normal((3, 5)), "float32")
    bias_act = any_backend.public("bias_act")
    compiled = any_backend.traced(lambda x: bias_act(x, activation="relu"))
    for got in (bias_act(x, activation="relu"), bias_act(x, activation=np.str_("relu")), compiled(x)):
        np.testing.assert_array_equal(any_backend.to_numpy(got), np.maximum(any_backend.to_numpy(x), 0))


def test_an_added_operator_hides_a_function_from_added_operators_only():
    names = FormulaNames({"product": "function", "sum": "function"}, built_in={"matmul"})
    names.add("matmul", "built in")
    names.add("product", "added")
    built_in, added = (vars(names.of(SimpleNamespace(name=name))) for name in ("matmul", "product"))
    assert built_in == {"product": "function", "sum": "function", "matmul": "built in"}
    assert added == {"product": "added", "sum": "function", "matmul": "built in"}
