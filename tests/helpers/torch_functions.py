"""PyTorch: specifications as functions of tensors, single or combined, for tests that compile or run a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tests.helpers.calls import function_of
from tests.helpers.checks import tuples
from tests.helpers.frameworks import Backend
from tests.helpers.specification import Sample, Specification
from tests.specifications import SPECIFICATIONS

Function = Callable[..., Any]


def tensor_function(
    backend: Backend, spec: Specification, sample: Sample, inputs: dict[str, Any]
) -> tuple[Function, tuple[Any, ...]]:
    """The sample's call as a function of its tensors, and the tensors."""
    names = sample.tensors
    return function_of(backend, spec, sample, inputs, names), tuple(inputs[name] for name in names)


def leaves(spec: Specification, sample: Sample, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of the tensors; the differentiable ones require a gradient."""
    wanted = spec.differentiable(sample)
    named = zip(sample.tensors, tensors, strict=True)
    return tuple(x.detach().clone().requires_grad_(name in wanted) for name, x in named)


def call_and_leaves(
    backend: Backend, spec: Specification, random: np.random.Generator
) -> tuple[Function, tuple[Any, ...], tuple[str, ...]]:
    """A small call as a function of its tensors, the tensors, and their names."""
    sample = spec.sample((3, 6), random)
    function, tensors = tensor_function(backend, spec, sample, backend.tensors(sample, "float32"))
    return function, leaves(spec, sample, tensors), sample.tensors


def with_upstream(torch: Any, outputs: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """The outputs as a tuple, and an upstream gradient for each."""
    return tuples(outputs), [torch.full_like(y, 0.75) for y in tuples(outputs)]


def outputs_and_gradients(torch: Any, function: Function, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs, and the gradients of the inputs that require one."""
    outputs, upstream = with_upstream(torch, function(*inputs))
    return (*outputs, *torch.autograd.grad(outputs, [x for x in inputs if x.requires_grad], upstream))


def combined(backend: Backend, calls: Iterable[tuple[Specification, Sample]]) -> tuple[Function, tuple[Any, ...]]:
    """One function that makes all calls, each on its own tensors, and the tensors: slow compilations run once."""
    functions, inputs = [], []
    for spec, sample in calls:
        function, tensors = tensor_function(backend, spec, sample, backend.tensors(sample, "float32"))
        functions.append((function, slice(len(inputs), len(inputs) + len(tensors))))
        inputs += leaves(spec, sample, tensors)

    def every(*tensors: Any) -> tuple[Any, ...]:
        return tuple(y for function, own in functions for y in tuples(function(*tensors[own])))

    return every, tuple(inputs)


def every_operator(
    backend: Backend, random: np.random.Generator, specifications: Iterable[Specification] = SPECIFICATIONS
) -> tuple[Function, tuple[Any, ...]]:
    return combined(backend, [(spec, spec.sample((4, 3, 8), random)) for spec in specifications])


def autograd_in_cpp() -> bool:
    from fusedops.torch import autograd_library

    return autograd_library.fault is None


def assert_same(torch: Any, got: Any, expected: Any) -> None:
    for left, right in zip(tuples(got), tuples(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def function_and_leaves(backend, spec, sample, wanted=None):
    inputs = backend.tensors(sample, "float64")
    names = wanted or spec.differentiable(sample)
    inputs = backend.leaves(inputs, names)
    return function_of(backend, spec, sample, inputs, names), tuple(inputs[name] for name in names)


def operators(y):
    """The operators whose backward is called for a result."""
    names, nodes = set(), [y.grad_fn]
    while nodes:
        node = nodes.pop()
        names.add(node.name())
        nodes += [next for next, _ in node.next_functions if next is not None]
    return {name for name in names if name.startswith("Fusedops")}


def recorded_calls(backend, spec, random, dtype="float64") -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """A call of every operator that the forward, backward and double backward reach, with all arguments."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = backend.torch
    calls: dict[str, Any] = {}

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "fusedops":
                given = tuple(name is not None for name in args)
                calls[f"{func} {given} {kwargs}"] = (func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    for sample in (spec.sample((3, 4), random), *spec.more_samples(random)):
        inputs = backend.leaves(
            backend.tensors(sample, dtype, spec if dtype == "bfloat16" else None), spec.differentiable(sample)
        )
        leaves = [inputs[name] for name in spec.differentiable(sample)]
        with Recorder():
            outputs = backend.call(spec.name, inputs, sample.options)
            upstream = [dy.requires_grad_() for dy in backend.upstream(outputs)]
            gradients = torch.autograd.grad(outputs, leaves, upstream, create_graph=True)
            total = sum((gradient**2).sum() for gradient in gradients)
            torch.autograd.grad(total, [*leaves, *upstream], allow_unused=True)
    return calls


def prepared(backend, spec: Specification, random, shape=(2, 3)):
    """A function of the differentiable inputs, and the inputs; detached, as torch.func takes them."""
    function, leaves = function_and_leaves(backend, spec, spec.sample(shape, random))
    return function, tuple(leaf.detach() for leaf in leaves)


def total(function):
    def summed(*tensors):
        outputs = function(*tensors)
        return sum((y * y).sum() for y in tuples(outputs))

    return summed


def close(torch, got, expected, equal_nan=False):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, equal_nan=equal_nan)
