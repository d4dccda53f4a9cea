"""Activations, with what is multiplied or added beside them."""

from __future__ import annotations

from fusedops.functions.common import Activation, Approximation, Tensor, ops, renamed


def bias_act(x: Tensor, bias: Tensor | None = None, activation: Activation = "gelu") -> Tensor:
    """act(x + bias).

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        bias: [D] for x of shape [..., D]; of x's dtype, or float32 beside a 16-bit x.
        activation: `identity`, `relu`, `gelu` (exact, by erf), `gelu_tanh` (its approximation by tanh), `silu`,
            `sigmoid` or `tanh`.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. Infinities give what
        the formula gives: `gelu`, `gelu_tanh` and `silu` are -inf · 0 = NaN at -inf.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
        ValueError: `activation` is none of these.

    Sources: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016; Elfwing, Uchibe and Doya,
        "Sigmoid-weighted linear units for neural network function approximation in reinforcement learning", 2017.
    """
    return ops.bias_act(x, bias, activation=activation)


def gated_act(gate: Tensor, up: Tensor | None = None, activation: Activation = "silu") -> Tensor:
    """act(gate) · up.

    Rows that are spaced apart, such as the halves of a larger tensor, are read where they lie.

    Args:
        gate: float64, float32, float16 or bfloat16, of any shape. Without `up` it is packed, [..., 2D]: the first
            half of the last dimension is the gate, the second half is `up`; so is its gradient.
        up: gate's shape and dtype.
        activation: as in `bias_act`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype. 16-bit inputs are computed in float32
        and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
        ValueError: `activation` is none of these.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    return ops.gated_act(gate, up, activation=activation)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """silu(gate) · up: `gated_act` with `silu`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    try:
        return ops.gated_act(gate, up, activation="silu")
    except Exception as error:
        raise renamed(error, "gated_act", "swiglu") from None


def geglu(gate: Tensor, up: Tensor | None = None, *, approximate: Approximation = "none") -> Tensor:
    """gelu(gate) · up: `gated_act` with `gelu` or `gelu_tanh`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.
        approximate: "none" for `gelu`, "tanh" for `gelu_tanh`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
        ValueError: `approximate` is neither.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"fusedops.geglu: approximate must be 'none' or 'tanh'; got {approximate!r}")
    try:
        return ops.gated_act(gate, up, activation="gelu_tanh" if approximate == "tanh" else "gelu")
    except Exception as error:
        raise renamed(error, "gated_act", "geglu") from None


def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """relu(gate) · up: `gated_act` with `relu`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    try:
        return ops.gated_act(gate, up, activation="relu")
    except Exception as error:
        raise renamed(error, "gated_act", "reglu") from None
