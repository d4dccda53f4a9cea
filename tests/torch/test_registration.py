"""PyTorch: every operator in torch.ops.fusedops, its schema, fake kernel and autograd registration."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.helpers import float8
from tests.helpers.torch_functions import autograd_in_cpp, call_and_leaves, outputs_and_gradients, recorded_calls
from tests.helpers.updates import OPERATORS
from tests.specifications import SPECIFICATIONS, is_of_an_expression


def registered_operators() -> set[str]:
    import torch

    names = torch._C._dispatch_get_all_op_names()
    return {name.removeprefix("fusedops::") for name in names if name.startswith("fusedops::")}


def test_opcheck(torch_backend, spec, random):
    """torch's own checks: nothing is aliased or mutated, fake kernels match real ones, autograd compiles.

    The last check takes longest, and runs on one call of every operator: test_compile.py compiles all options.
    """
    torch = torch_backend.torch
    compiled = set()
    for label, (func, args, kwargs) in recorded_calls(torch_backend, spec, random).items():
        named = [(x, argument.name) for x, argument in zip(args, func._schema.arguments, strict=False)]
        fresh = tuple(
            x.detach().clone().requires_grad_(x.is_floating_point() and name not in spec.not_differentiable)
            if isinstance(x, torch.Tensor)
            else x
            for x, name in named
        )
        result = torch.library.opcheck(func, fresh, kwargs, test_utils=checks(func, func not in compiled))
        compiled.add(func)
        assert set(result.values()) == {"SUCCESS"}, label


def checks(func, compile):
    """The checks for this operator. With symbolic shapes, attention's second derivative takes a minute: it is a long
    formula of torch's operators."""
    shapes = "static" if "attention" in func.__name__ and "backward" in func.__name__ else "dynamic"
    compiled = (f"test_aot_dispatch_{shapes}",) * compile
    return ("test_schema", "test_autograd_registration", "test_faketensor", *compiled)


def test_fake_kernels_of_mixed_dtypes(torch_backend, spec, random):
    """bfloat16 inputs with float32 parameters: outputs whose dtype is not x's."""
    torch = torch_backend.torch
    for label, (func, args, kwargs) in recorded_calls(torch_backend, spec, random, "bfloat16").items():
        fresh = tuple(x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args)
        result = torch.library.opcheck(func, fresh, kwargs, test_utils="test_faketensor")
        assert set(result.values()) == {"SUCCESS"}, label


def test_every_operator_is_reached(torch_cpu, random):
    """Hence opcheck and the derivatives' suites test all operators."""
    reached = {
        func._opname for spec in SPECIFICATIONS for func, _, _ in recorded_calls(torch_cpu, spec, random).values()
    }
    elsewhere = OPERATORS | float8.SIGNATURES.keys()  # test_updates.py, test_float8.py
    others = registered_operators() - reached - elsewhere
    assert all(map(is_of_an_expression, others))  # added by other tests


def test_autograd_is_in_python_behind_that_in_cpp(torch_cpu):
    has_kernel = torch_cpu.torch._C._dispatch_has_kernel_for_dispatch_key
    for name in registered_operators():
        assert has_kernel(f"fusedops::{name}", "Autograd")
        for device in ("CPU", "CUDA"):
            assert has_kernel(f"fusedops::{name}", f"Autograd{device}") == autograd_in_cpp(), name


def test_raw_operators_give_the_same_bits(torch_backend, spec, random):
    torch = torch_backend.torch
    for func, args, kwargs in recorded_calls(torch_backend, spec, random).values():
        args = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)
        expected = func(*args, **kwargs)
        got = torch.func.functionalize(func)(*args, **kwargs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fake", ["meta", "fake"])
def test_tensors_without_data(torch_cpu, spec, dtype, fake, random):
    """Shapes and dtypes are inferred before anything is computed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch = torch_cpu.torch
    for sample in (spec.sample((3, 4), random), *spec.more_samples(random)):
        inputs = torch_cpu.tensors(sample, dtype)
        expected = torch_cpu.call(spec.name, inputs, sample.options)
        mode = FakeTensorMode()
        convert = (lambda x: x.to("meta")) if fake == "meta" else mode.from_tensor
        empty = {name: convert(x) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        if fake == "meta":
            outputs = torch_cpu.call(spec.name, empty, sample.options)
        else:
            with mode:
                outputs = torch_cpu.call(spec.name, empty, sample.options)
        for got, output in zip(outputs, expected, strict=True):
            assert (got.shape, got.dtype, got.stride()) == (output.shape, output.dtype, output.stride())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_without_data(torch_backend, spec, compiled, random):
    """With fake tensors, which claim to be on the device, in eager code and through Dynamo."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch = torch_backend.torch
    function, inputs, _ = call_and_leaves(torch_backend, spec, random)
    expected = outputs_and_gradients(torch, function, inputs)
    if compiled:
        torch.compiler.reset()  # torch recompiles one piece of code, such as this one, only a few times
        function = torch.compile(function, fullgraph=True, backend="eager")
    with FakeTensorMode() as mode:
        got = outputs_and_gradients(torch, function, tuple(mode.from_tensor(x) for x in inputs))
    for x, y in zip(got, expected, strict=True):
        assert (x.shape, x.dtype, x.stride(), x.device.type) == (y.shape, y.dtype, y.stride(), y.device.type)


def test_meta_tensors_beside_others(torch_cpu, spec, random):
    """A fake kernel refuses two devices like a real one."""
    sample = spec.sample((2, 3), random)
    inputs = torch_cpu.tensors(sample, "float32")
    for name in sample.tensors[1:]:
        with pytest.raises(
            RuntimeError, match=rf"fusedops\.{spec.function}: \w+ must be on \w+'s device, \w+; got \w+"
        ):
            torch_cpu.call(spec.name, {**inputs, name: inputs[name].to("meta")}, sample.options)


def test_sparse_tensors(torch_cpu, spec, random):
    sample = spec.sample((2, 3), random)
    inputs = torch_cpu.tensors(sample, "float32")
    name = next(name for name in sample.tensors if inputs[name].dim())
    with pytest.raises(TypeError, match=rf"fusedops\.{spec.function}: {name} must be a dense tensor; got sparse_coo"):
        torch_cpu.call(spec.name, {**inputs, name: inputs[name].to_sparse()}, sample.options)


def test_an_unsupported_dtype_is_refused(torch_cpu):
    """Refused with a message, and the other arguments are freed."""
    torch = torch_cpu.torch
    x = torch.zeros(4)
    alive = weakref.ref(x)
    with pytest.raises(RuntimeError, match="x must be float64, float32, float16 or bfloat16; got") as caught:
        torch.ops.fusedops.add(torch.empty(4, dtype=torch.bits8), x)
    caught.value.__traceback__ = None
    del x, caught
    gc.collect()
    assert alive() is None


def test_errors_of_torch_name_no_folder_of_the_build(torch_cpu, spec):
    """If no kernel fits, torch prints where each kernel was registered."""
    dump = torch_cpu.torch._C._dispatch_dump(f"fusedops::{spec.operator}")
    assert "\nCPU: registered at torch_binding/library.cpp" in dump
