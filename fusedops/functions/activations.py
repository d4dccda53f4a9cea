"""Activations, with the bias that is added first or the gate that is multiplied."""

from __future__ import annotations

from fusedops.functions.common import Activation, Approximation, Tensor, ops, renamed


def bias_act(x: Tensor, bias: Tensor | None = None, activation: Activation = "gelu") -> Tensor:
    """act(x + bias).

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        bias: [D] for x of shape [..., D]; of x's dtype, or float32 beside a 16-bit x.
        activation: `identity`, `relu`, `gelu` (exact, by erf), `gelu_tanh` (its approximation by tanh), `silu`,
            `sigmoid` or `tanh`.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. Infinities
        are no special case: `gelu`, `gelu_tanh` and `silu` of -inf are -inf · 0 = NaN.

    Gradient:
        dx = dy · act'(x + bias); dbias is the sum of dx over all dimensions but the last.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `activation` is not one of those above.

    PyTorch:
        >>> fo.bias_act(torch.tensor([[-1.0, 1.0]]), torch.tensor([1.0, 1.0]), "silu")
        tensor([[0.0000, 1.7616]])

    TensorFlow:
        >>> fo.bias_act(tf.constant([[-1.0, 1.0]]), tf.constant([1.0, 1.0]), "silu").numpy().round(4)
        array([[0.    , 1.7616]], dtype=float32)

    Sources: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016; Elfwing, Uchibe and Doya,
        "Sigmoid-weighted linear units for neural network function approximation in reinforcement learning", 2017.
    """
    return ops.bias_act(x, bias, activation=activation)


def gated_act(gate: Tensor, up: Tensor | None = None, activation: Activation = "silu") -> Tensor:
    """act(gate) · up.

    Rows may be strided, such as the halves of a larger tensor: they are read in place.

    Args:
        gate: float64, float32, float16 or bfloat16, any shape. Without `up` it is packed, [..., 2D]: the first half of
            the last dimension is the gate, the second half is `up`.
        up: gate's shape and dtype.
        activation: as in `bias_act`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype. 16-bit inputs are computed in float32
        and rounded once.

    Gradient:
        dgate = dy · up · act'(gate) and dup = dy · act(gate). The gradient of a packed gate is packed.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        >>> fo.gated_act(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), activation="relu")
        tensor([[3., 8.]])

    TensorFlow:
        >>> fo.gated_act(tf.constant([[1.0, 2.0, 3.0, 4.0]]), activation="relu").numpy().round(4)
        array([[3., 8.]], dtype=float32)

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

    Gradient:
        As in `gated_act`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        >>> fo.swiglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.1932, 7.0464]])

    TensorFlow:
        >>> fo.swiglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[2.1932, 7.0464]], dtype=float32)

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

    Gradient:
        As in `gated_act`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `approximate` is neither of the two.

    PyTorch:
        >>> fo.geglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.5240, 7.8180]])

    TensorFlow:
        >>> fo.geglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[2.524, 7.818]], dtype=float32)

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

    Gradient:
        As in `gated_act`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        >>> fo.reglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[3., 8.]])

    TensorFlow:
        >>> fo.reglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[3., 8.]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    try:
        return ops.gated_act(gate, up, activation="relu")
    except Exception as error:
        raise renamed(error, "gated_act", "reglu") from None
