"""PyTorch: features of torch's autograd around fusedops's graphs: hooks, saved tensors, checkpoints, determinism."""

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
    """grad_fn, and with it anomaly mode and the profiler, names the operator."""
    torch, function, inputs = case
    outputs, _ = with_upstream(torch, function(*inputs))
    assert {y.grad_fn.name() for y in outputs} == {name_of(spec)}


@pytest.mark.filterwarnings("ignore")  # about its speed, and the location of the forward
def test_anomaly_mode(case, spec):
    torch, function, inputs = case
    with torch.autograd.detect_anomaly():
        (y, *_), _ = with_upstream(torch, function(*inputs))
        with pytest.raises(RuntimeError, match=f"'{name_of(spec)}' returned nan values"):
            y.backward(torch.full_like(y, torch.nan))


def test_inputs_that_are_no_leaves(case):
    """Hooks on inputs that are not leaves see and change the gradients."""
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
    """After the forward, a changed tensor is either unused in the backward or reported by torch's own error."""
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
    """The backward reads only tensors that went through the hooks, not those of the forward."""
    torch, function, inputs = case
    expected = outputs_and_gradients(torch, function, inputs)
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, lambda kept: kept):
        found, upstream = with_upstream(torch, function(*inputs))
    for x in (*inputs, *found):
        x.data.zero_()  # unnoticed by autograd
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
    torch.autograd.backward(outputs, upstream)  # reentrant checkpoints do not support autograd.grad
    got = (*outputs, *(x.grad for x in inputs if x.requires_grad))
    assert_same(torch, got, expected)


class Policy:
    """A policy of selective checkpoints that saves the operators' outputs or not, and records the operators."""

    def __init__(self, torch, spec, is_saving: bool) -> None:
        self.operators = {getattr(torch.ops.fusedops, spec.operator).default}
        self.is_saving = is_saving
        self.seen = set()

    def __call__(self, context, operator, *args, **kwargs):
        from torch.utils.checkpoint import CheckpointPolicy

        if operator in self.operators:
            self.seen.add(operator._schema.name)
            if self.is_saving:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    def checkpointed(self, function):
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        def contexts():
            return create_selective_checkpoint_contexts(self)

        return lambda *tensors: checkpoint(function, *tensors, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("is_saving", [False, True], ids=["recomputed", "saved"])
def test_selective_checkpoint(case, spec, is_saving):
    """A policy sees the operator, and saved outputs are not recomputed. In C++, neither are outputs that no backward
    reads."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch, function, inputs = case
    policy = Policy(torch, spec, is_saving)
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
    assert checkpointed.count == plain.count + (not is_saving and len(read) > 0)


def test_compiled_selective_checkpoint(case, torch_backend, spec):
    """In compiled code the policy sees the operator under the same name."""
    torch, function, inputs = case
    policy = Policy(torch, spec, is_saving=True)
    got = outputs_and_gradients(torch, torch_backend.traced(policy.checkpointed(function)), inputs)
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))
    assert policy.seen == {f"fusedops::{spec.operator}"}


def test_deterministic_algorithms(case):
    """Permitted without a warning, forward and backward; torch's fill of uninitialized memory never appears in
    results."""
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
