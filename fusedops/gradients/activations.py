"""Activations with a bias or a gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fusedops.gradients.composite import second_derivative
from fusedops.gradients.registry import Tensor, gradient


@gradient("bias_act_backward", saves=("dy", "x", "bias"))
def _bias_act_backward(f: Any, c: Any, gdx: Tensor | None, gdbias: Tensor | None) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        return ACTIVATIONS[c.activation](f, x if bias is None else x + bias)

    return second_derivative(f, c, plain, x=gdx, bias=gdbias)


@gradient("gated_act_backward", saves=("dy", "gate", "up"))
def _gated_act_backward(f: Any, c: Any, gdgate: Tensor | None, gdup: Tensor | None) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, gate: Tensor, up: Tensor | None) -> Tensor:
        if up is None:
            gate, up = f.halves(gate)
        return ACTIVATIONS[c.activation](f, gate) * up

    return second_derivative(f, c, plain, gate=gdgate, up=gdup)


def _gelu(f: Any, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + f.erf(x * math.sqrt(0.5)))


def _gelu_tanh(f: Any, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + f.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


ACTIVATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "identity": lambda f, x: x,
    "relu": lambda f, x: f.relu(x),  # the operator: its gradient at 0 is 0
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda f, x: x * f.sigmoid(x),
    "sigmoid": lambda f, x: f.sigmoid(x),
    "tanh": lambda f, x: f.tanh(x),
}
