"""PyTorch: first and second derivatives, reverse and forward mode, against numeric ones in float64."""

from __future__ import annotations

import pytest

from tests.helpers.checks import small_samples
from tests.helpers.torch_functions import function_and_leaves


def test_gradcheck(torch_backend, spec, random):
    gradcheck = torch_backend.torch.autograd.gradcheck
    for sample in small_samples(spec, random):
        function, leaves = function_and_leaves(torch_backend, spec, sample)
        assert gradcheck(
            function,
            leaves,
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
            fast_mode=True,
        )
    sample = spec.sample((2, 3), random)
    function, leaves = function_and_leaves(torch_backend, spec, sample)
    assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)


def test_gradgradcheck(torch_backend, spec, random):
    gradgradcheck = torch_backend.torch.autograd.gradgradcheck
    for sample in small_samples(spec, random):
        function, leaves = function_and_leaves(torch_backend, spec, sample)
        assert gradgradcheck(
            function, leaves, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True, fast_mode=True
        )


def test_of_each_input_alone(torch_backend, spec, random):
    sample = spec.sample((2, 3), random)
    for name in spec.differentiable(sample):
        function, leaves = function_and_leaves(torch_backend, spec, sample, (name,))
        assert torch_backend.torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
        assert torch_backend.torch.autograd.gradgradcheck(function, leaves)


def test_third_order(torch_backend, spec, random):
    """The formulas consist of operators that have formulas themselves."""
    torch = torch_backend.torch
    function, leaves = function_and_leaves(torch_backend, spec, spec.sample((2, 3), random))

    def gradient(*tensors):
        outputs = function(*tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum((output**3).sum() for output in outputs)
        return torch.autograd.grad(total, tensors, create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, leaves, fast_mode=True)


def test_dual_numbers(torch_backend, spec, dtype, random):
    """Forward mode through torch.autograd.forward_ad agrees with reverse mode: <dy, J v> = <Jᵀ dy, v>."""
    torch = torch_backend.torch
    forward_ad = torch.autograd.forward_ad
    sample = spec.sample((3, 5), random)
    inputs = torch_backend.tensors(sample, dtype)
    tangents = {name: torch.ones_like(inputs[name]) for name in spec.differentiable(sample)}
    with forward_ad.dual_level():
        duals = {**inputs, **{name: forward_ad.make_dual(inputs[name], tangent) for name, tangent in tangents.items()}}
        outputs = [forward_ad.unpack_dual(output) for output in torch_backend.call(spec.name, duals, sample.options)]
    upstream = torch_backend.upstream(output.primal for output in outputs)
    _, gradients = torch_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample), upstream)
    products = [dy.double() * output.tangent.double() for dy, output in zip(upstream, outputs, strict=True)]
    forward = sum(product.sum() for product in products)
    size = sum(product.abs().sum() for product in products)
    reverse = sum(gradients[name].double().sum() for name in tangents)
    assert all(output.tangent.dtype == output.primal.dtype for output in outputs)
    # Every tangent and every gradient is rounded a few times in dtype.
    assert abs(forward - reverse) <= 8 * torch.finfo(getattr(torch, dtype)).eps * (size + 1)


def test_gradients_accumulate(torch_backend, spec, random):
    """backward() twice over one graph, into .grad."""
    sample = spec.sample((3, 5), random)
    inputs = torch_backend.leaves(torch_backend.tensors(sample, "float32"), spec.differentiable(sample))
    outputs = torch_backend.call(spec.name, inputs, sample.options)
    total = sum(output.sum() for output in outputs)
    total.backward(retain_graph=True)
    once = {name: inputs[name].grad.clone() for name in spec.differentiable(sample)}
    total.backward()
    for name, gradient in once.items():
        torch_backend.torch.testing.assert_close(inputs[name].grad, 2 * gradient, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_gradients(torch_backend, spec, mode, random):
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    inputs = torch_backend.leaves(torch_backend.tensors(sample, "float32"), spec.differentiable(sample))
    expected = torch_backend.call(spec.name, inputs, sample.options)
    with getattr(torch, mode)():
        outputs = torch_backend.call(spec.name, inputs, sample.options)
    for got, output in zip(outputs, expected, strict=True):
        assert not got.requires_grad
        assert output.requires_grad
        assert torch.equal(got, output)


def test_second_order_of_mixed_dtypes(torch_backend, spec, random):
    """bfloat16 inputs with float32 parameters: close to float64's results for the same numbers, each in its own
    dtype."""
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    narrow = torch_backend.tensors(sample, "bfloat16", spec)
    wide = {name: x.double() if name in sample.floating else x for name, x in narrow.items()}
    found = []
    for inputs in (narrow, wide):
        leaves = torch_backend.leaves(inputs, spec.differentiable(sample))
        tensors = [leaves[name] for name in spec.differentiable(sample)]
        outputs = torch_backend.call(spec.name, leaves, sample.options)
        first = torch.autograd.grad(sum((y**2).sum() for y in outputs), tensors, create_graph=True)
        found.append(torch.autograd.grad(sum((g**2).sum() for g in first), tensors))
    for name, got, expected in zip(spec.differentiable(sample), *found, strict=True):
        x = narrow[name]
        assert (got.dtype, got.shape) == (x.dtype, x.shape)
        # A dozen roundings of 2^-9, relative to the largest element: sums cancel.
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=12 * 2**-9 * float(expected.abs().max()) + 1e-9)
