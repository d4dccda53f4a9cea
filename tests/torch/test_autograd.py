"""PyTorch: what torch's autograd offers around a graph of ours: hooks, saved tensors, checkpoints, determinism."""

from __future__ import annotations

import warnings

import pytest

from tests.helpers.torch_functions import (
    assert_same,
    autograd_in_cpp,
    call_and_leaves,
    outputs_and_gradients,
    with_upstream,
)


@pytest.fixture
def case(torch_backend, spec, random):
    """torch, a call as a function, and its inputs."""
    function, inputs, _ = call_and_leaves(torch_backend, spec, random)
    return torch_backend.torch, function, inputs


def name_of(spec):
    return f"Fusedops{''.join(map(str.capitalize, spec.operator.split('_')))}Backward"


def test_names(case, spec):
    """grad_fn, and with it anomaly mode and the profiler, say which operator it was."""
    torch, function, inputs = case
    outputs, _ = with_upstream(torch, function(*inputs))
    assert {y.grad_fn.name() for y in outputs} == {name_of(spec)}


@pytest.mark.filterwarnings("ignore")  # that it is slow, and where the forward was
def test_anomaly_mode(case, spec):
    torch, function, inputs = case
    with torch.autograd.detect_anomaly():
        (y, *_), _ = with_upstream(torch, function(*inputs))
        with pytest.raises(RuntimeError, match=f"'{name_of(spec)}' returned nan values"):
            y.backward(torch.full_like(y, torch.nan))


def test_inputs_that_are_no_leaves(case):
    """Gradients flow on through them, and hooks on them see and change what flows."""
    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    seen = []

    def double(gradient):
        seen.append(gradient)
        return 2 * gradient

    def through(*tensors):
        moved = [x * 1 if x.requires_grad else x for x in tensors]
        for x in moved:
            if x.requires_grad:
                x.register_hook(double)
        return function(*moved)

    got = outputs_and_gradients(torch, through, inputs)
    gradients = expected[len(expected) - len(seen) :]
    assert len(seen) == sum(x.requires_grad for x in inputs)
    assert_same(torch, got, (*expected[: -len(seen)], *(2 * gradient for gradient in gradients)))


def test_changed_in_place(case):
    """What changes after the forward either is not needed by the backward, or torch's error says that it changed."""
    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    wanted = sum(x.requires_grad for x in inputs)
    for place in range(len(inputs) + len(expected) - wanted):
        fresh = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
        found, upstream = with_upstream(torch, function(*fresh))
        changed = (*fresh, *found)[place].detach()
        changed.copy_(changed.roll(1))
        try:
            got = torch.autograd.grad(found, [x for x in fresh if x.requires_grad], upstream)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            assert_same(torch, got, expected[-wanted:])


def test_saved_tensors_hooks(case):
    """All that the backward reads has gone through the hooks: nothing is read from the tensors of the forward."""
    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, lambda kept: kept):
        found, upstream = with_upstream(torch, function(*inputs))
    for x in (*inputs, *found):
        x.data.zero_()  # behind the back of autograd
    got = torch.autograd.grad(found, [x for x in inputs if x.requires_grad], upstream)
    assert_same(torch, got, expected[len(found) :])


def test_saved_on_the_cpu(case):
    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    with torch.autograd.graph.save_on_cpu(pin_memory=inputs[0].is_cuda):
        found, upstream = with_upstream(torch, function(*inputs))
    got = torch.autograd.grad(found, [x for x in inputs if x.requires_grad], upstream)
    assert_same(torch, got, expected[len(found) :])


@pytest.mark.parametrize("reentrant", [False, True], ids=["not-reentrant", "reentrant"])
def test_checkpoint(case, reentrant):
    from torch.utils.checkpoint import checkpoint

    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    outputs, upstream = with_upstream(torch, checkpoint(function, *inputs, use_reentrant=reentrant))
    torch.autograd.backward(outputs, upstream)  # the reentrant kind takes no autograd.grad
    got = (*outputs, *(x.grad for x in inputs if x.requires_grad))
    assert_same(torch, got, expected)


class Policy:
    """A policy of selective checkpoints, which keeps what the operators computed or not, and remembers which it saw."""

    def __init__(self, torch, spec, keeps: bool) -> None:
        self.operators = {getattr(torch.ops.fusedops, spec.operator).default}
        self.keeps = keeps
        self.seen = set()

    def __call__(self, context, operator, *args, **kwargs):
        from torch.utils.checkpoint import CheckpointPolicy

        if operator in self.operators:
            self.seen.add(operator._schema.name)
            if self.keeps:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def checkpointed(self, function):
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        def contexts():
            return create_selective_checkpoint_contexts(self)

        return lambda *tensors: checkpoint(function, *tensors, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("keeps", [False, True], ids=["recomputed", "kept"])
def test_selective_checkpoint(case, spec, keeps):
    """A policy sees the operator, and what it keeps is not computed again; nor, in C++, is what no backward reads."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch, function, inputs = case
    policy = Policy(torch, spec, keeps)
    saved = []

    class Kernels(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            self.count += operator in policy.operators
            return operator(*args, **(kwargs or {}))

    def save(x):
        saved.append(x)
        return x

    with Kernels() as plain, torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        expected = outputs_and_gradients(torch, function, inputs)
    with Kernels() as checkpointed:
        got = outputs_and_gradients(torch, policy.checkpointed(function), inputs)
    assert_same(torch, got, expected)
    assert policy.seen == {f"fusedops::{spec.operator}"}
    given = {x.data_ptr() for x in inputs}
    read = [x for x in saved if not autograd_in_cpp() or x.data_ptr() not in given]
    assert checkpointed.count == plain.count + (not keeps and len(read) > 0)


def test_compiled_selective_checkpoint(case, torch_backend, spec):
    """In compiled code the same policy sees the operator under the same name."""
    torch, function, inputs = case
    policy = Policy(torch, spec, keeps=True)
    got = outputs_and_gradients(torch, torch_backend.traced(policy.checkpointed(function)), inputs)
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))
    assert policy.seen == {f"fusedops::{spec.operator}"}


def test_deterministic_algorithms(case):
    """Allowed, forward and backward, without a warning; what torch then fills new memory with never comes out."""
    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    try:
        for warn_only in (False, True):
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            assert torch.utils.deterministic.fill_uninitialized_memory
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                got = outputs_and_gradients(torch, function, inputs)
            assert_same(torch, got, expected)
    finally:
        torch.use_deterministic_algorithms(False)
