"""PyTorch: subclasses of torch.Tensor and modes. Those that support any operator run fusedops's; others raise an
error."""

from __future__ import annotations

import re

import pytest

from tests.helpers.checks import tuples
from tests.helpers.torch_functions import assert_same, call_and_leaves, outputs_and_gradients

SUBCLASS = "a torch.Tensor, or of a class that runs fused operators"


@pytest.fixture
def case(torch_backend, spec, random):
    """torch, a call as a function, its inputs and their names."""
    return torch_backend.torch, *call_and_leaves(torch_backend, spec, random)


def first_matrix(inputs):
    """The name of the first tensor with rows, which some kinds of tensors must have."""
    return next(place for place, x in enumerate(inputs) if x.dim() > 1)


def with_one(inputs, place, x):
    return (*inputs[:place], x, *inputs[place + 1 :])


def refusing_subclass(torch):
    """A wrapper tensor that refuses every operator."""

    class Refuses(torch.Tensor):
        @staticmethod
        def __new__(cls, x):
            return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)

        @classmethod
        def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
            return NotImplemented

    return Refuses


def test_a_subclass_that_refuses(case, spec):
    """Refused as any of the inputs."""
    torch, function, inputs, names = case
    wrap = refusing_subclass(torch)
    for place, name in enumerate(names):
        given = with_one(inputs, place, wrap(inputs[place].detach()))
        with pytest.raises(TypeError, match=rf"fusedops\.{spec.function}: {name} must be {SUBCLASS}; got Refuses$"):
            function(*given)


def test_a_subclass_that_knows_no_function(case, spec):
    torch, function, inputs, names = case

    class Refuses(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return NotImplemented

    place = first_matrix(inputs)
    given = with_one(inputs, place, inputs[place].detach().as_subclass(Refuses))
    with pytest.raises(TypeError, match=rf"fusedops\.{spec.function}: {names[place]} must be {SUBCLASS}; got Refuses$"):
        function(*given)


@pytest.mark.filterwarnings("ignore::UserWarning")  # that they are experimental, and do not know the operator
def test_masked_tensors(case, spec):
    torch, function, inputs, names = case
    place = first_matrix(inputs)
    x = inputs[place].detach()
    given = with_one(inputs, place, torch.masked.masked_tensor(x, x > 0))
    with pytest.raises(
        TypeError, match=rf"fusedops\.{spec.function}: {names[place]} must be {SUBCLASS}; got MaskedTensor$"
    ):
        function(*given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("layout", "kind", "compiled"),
    # no compiler supports the last one
    [("jagged", "jagged", False), ("jagged", "jagged", True), ("strided", "nested", False)],
    ids=["jagged", "jagged-compiled", "strided"],
)
def test_nested_tensors(case, torch_backend, spec, layout, kind, compiled):
    torch, function, inputs, names = case
    place = first_matrix(inputs)
    x = inputs[place].detach()
    nested = torch.nested.nested_tensor([x, x[:2]], layout=getattr(torch, layout))
    if compiled:
        function = torch_backend.traced(function)
    # Compiled code names the operator; that of an expression has its name and 16 digits.
    name = re.sub("_[0-9a-f]{16}$", "", spec.operator) if compiled else spec.function
    sentence = rf"fusedops\.{name}: {names[place]} must be a dense tensor; got {kind}"
    with pytest.raises((TypeError, RuntimeError), match=sentence):
        function(*with_one(inputs, place, nested))


@pytest.fixture
def mesh(torch_backend):
    """A mesh of two devices, of which one is fake."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.device_mesh.init_device_mesh(torch_backend.device, (2,))
    dist.destroy_process_group()


def test_distributed_tensors(case, spec, mesh):
    """DTensors are supported, but not together with a plain tensor."""
    from torch.distributed.tensor import DTensor, Replicate

    torch, function, inputs, names = case
    place = first_matrix(inputs)
    distributed = [DTensor.from_local(x.detach(), mesh, [Replicate()], run_check=False) for x in inputs]
    results = tuples(function(*distributed))
    assert all(type(y) is DTensor for y in results)
    assert_same(torch, tuple(y.to_local() for y in results), function(*inputs))
    local = [name for i, (name, x) in enumerate(zip(names, inputs, strict=True)) if i != place and x.numel() != 1]
    if local:
        sentence = rf"{local[0]} must be a DTensor beside {names[place]}; got Tensor: pass torch\.distributed\.tensor\."
        with pytest.raises(TypeError, match=rf"fusedops\.{spec.function}: {sentence}distribute_tensor\({local[0]}, "):
            function(*with_one(inputs, place, distributed[place]))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_subclass_that_runs_any_operator(case, torch_backend, compiled):
    """A subclass that holds two tensors runs the operator on each, forward and backward."""
    from torch.testing._internal.two_tensor import TwoTensor

    torch, function, inputs, _ = case
    expected = outputs_and_gradients(torch, function, inputs)
    twice = tuple(TwoTensor(x.detach(), x.detach().clone()).requires_grad_(x.requires_grad) for x in inputs)
    got = outputs_and_gradients(torch, torch_backend.traced(function) if compiled else function, twice)
    assert all(isinstance(x, TwoTensor) for x in got)
    for half in ("a", "b"):
        assert_same(torch, tuple(getattr(x, half) for x in got), expected)


def test_a_plain_subclass(case):
    """Results of a subclass without its own handlers have its class, as from torch's functions; so do gradients."""
    torch, function, inputs, _ = case

    class Plain(torch.Tensor):
        pass

    expected = outputs_and_gradients(torch, function, inputs)
    given = tuple(x.detach().as_subclass(Plain).requires_grad_(x.requires_grad) for x in inputs)
    outputs = function(*given)
    got = outputs_and_gradients(torch, function, given)
    assert all(type(y) is Plain for y in (outputs if isinstance(outputs, tuple) else (outputs,)))
    assert_same(torch, tuple(x.as_subclass(torch.Tensor) for x in got), expected)


def test_parameters(case):
    """torch.nn.Parameter is an input, a plain tensor the result."""
    torch, function, inputs, _ = case
    given = tuple(torch.nn.Parameter(x.detach(), requires_grad=x.requires_grad) for x in inputs)
    got = outputs_and_gradients(torch, function, given)
    assert {type(x) for x in got} == {torch.Tensor}
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))


def test_modes(case, spec):
    """Modes that observe every call see the operator, forward and backward, and change no result."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    torch, function, inputs, _ = case
    functions, operators = [], []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, called, types, args=(), kwargs=None):
            functions.append(str(called))
            return called(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, called, types, args=(), kwargs=None):
            operators.append(str(called))
            return called(*args, **(kwargs or {}))

    with Functions(), Operators():
        got = outputs_and_gradients(torch, function, inputs)
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))
    assert f"fusedops.{spec.operator}.default" in functions
    assert f"fusedops.{spec.operator}.default" in operators
