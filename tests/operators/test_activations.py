"""The short names of gated_act give its bits, packed or not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits

SHORT = (
    ("swiglu", {}, "silu"),
    ("geglu", {}, "gelu"),
    ("geglu", {"approximate": "none"}, "gelu"),
    ("geglu", {"approximate": "tanh"}, "gelu_tanh"),
    ("reglu", {}, "relu"),
)


@pytest.mark.parametrize(("name", "options", "activation"), SHORT)
def test_short_names(any_backend, name, options, activation, dtype, random):
    gate, up = (any_backend.tensor(random.normal(size=(3, 34)), dtype) for _ in "gu")
    for inputs in ({"gate": gate, "up": up}, {"gate": gate}):
        (got,) = any_backend.call(name, inputs, options)
        (expected,) = any_backend.call("gated_act", inputs, {"activation": activation})
        assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(expected))


def test_packed_has_the_bits_of_two_tensors(any_backend, dtype, random):
    """Forward and backward."""
    packed = random.normal(size=(5, 3, 68))
    gate, up = np.split(packed, 2, -1)
    one = {"gate": any_backend.tensor(packed, dtype)}
    two = {"gate": any_backend.tensor(gate, dtype), "up": any_backend.tensor(up, dtype)}
    (y,), gradient = any_backend.gradients("gated_act", one, {}, ("gate",))
    (expected,), gradients = any_backend.gradients("gated_act", two, {}, ("gate", "up"))
    assert_same_bits(any_backend.to_numpy(y), any_backend.to_numpy(expected))
    halves = np.concatenate([any_backend.to_numpy(gradients[half]) for half in ("gate", "up")], -1)
    assert_same_bits(any_backend.to_numpy(gradient["gate"]), halves)


def test_halves_of_a_tensor_are_read_in_place(torch_backend, dtype, random):
    """They have the bits of copies."""
    packed = torch_backend.tensor(random.normal(size=(5, 3, 68)), dtype)
    gate, up = packed.chunk(2, -1)
    (got,) = torch_backend.call("gated_act", {"gate": gate, "up": up})
    (expected,) = torch_backend.call("gated_act", {"gate": packed})
    assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(expected))


def test_an_unknown_approximation(any_backend):
    gate = any_backend.tensor(np.ones((2, 4)), "float32")
    with pytest.raises(ValueError, match=r"fusedops\.geglu: approximate must be 'none' or 'tanh'; got 'erf'"):
        any_backend.call("geglu", {"gate": gate}, {"approximate": "erf"})


def test_other_errors_are_unchanged(torch_cpu):
    from torch.utils._python_dispatch import TorchDispatchMode

    mine = ValueError("not in fusedops.mode: at all")

    class Refuses(TorchDispatchMode):
        def __torch_dispatch__(self, *_):
            raise mine

    x = torch_cpu.tensor(np.ones((3, 8)), "float32")
    with pytest.raises(ValueError, match=str(mine)), Refuses():
        torch_cpu.functions.swiglu(x)


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_errors_name_the_function_that_was_called(any_backend, name):
    """Errors raised by Python, not those of a running graph."""
    gate, up = (any_backend.tensor(np.ones((3, size)), "float32") for size in (8, 7))
    calls = [any_backend.public(name)]
    if any_backend.framework == "tf":
        calls.append(any_backend.traced(any_backend.public(name)))
    for call in calls:
        with pytest.raises(
            any_backend.errors, match=rf"fusedops\.{name}: up must have gate's shape, \[3, 8\]; got \[3, 7\]"
        ):
            call(gate, up)
        with pytest.raises(TypeError, match=rf"fusedops\.{name}: gate must be a tensor; got NoneType"):
            call(None)
