"""Activations, with the bias that is added first or the gate that is multiplied."""

from __future__ import annotations

from typing import Any

from fusedops.functions.common import Activation, Approximation, Refused, Scaling, Tensor, dtype_name, ops, renamed
from fusedops.functions.refusal import refuse


def bias_act(
    x: Tensor, bias: Tensor | None = None, activation: Activation = "gelu", *more: Refused, **others: Refused
) -> Tensor:
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
    if more or others:
        refuse("bias_act", more, others)
    return ops.bias_act(x, bias, activation=activation)


def bias_act_float8(
    x: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "gelu",
    *more: Refused,
    scale: Tensor | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    **others: Refused,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with act(x + bias) ≈ y · scale, y in 8 bits: for products in float8.

    With `identity` and no bias it rounds x as it is.

    A value that is divided by its scale rounds once, to nearest even, and becomes the largest finite number (448 for
    float8_e4m3fn, 57344 for float8_e5m2) if it is beyond: infinities, too. NaN stays NaN, and does not count for the
    largest value.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x.
        activation: as in `bias_act`.
        scale: the divisor of the values, of the shape below for `scaling`; float32, or float64 for a float64 x. None
            computes it: the largest absolute value over the largest finite number, and at least the smallest normal
            number of its dtype, so that zeros have a scale, too. With an infinity among the values it is infinite, and
            y 0, or NaN where the value is infinite or NaN: a given scale avoids that.
        scaling: the parts with a scale each: `tensor`, everything, [] (if given, any shape of one element); `row`,
            [..., 1]; `block`, 128 neighbouring elements of a row, [..., ceil(columns / 128)]. A row's scales are those
            of `torch._scaled_mm` and of blockwise kernels; `block` has them row by row.
        dtype: `float8_e4m3fn` or `float8_e5m2`, by name or as a dtype of the framework.

    Returns:
        y, of x's shape, and its scale: the given one, or the one that was computed. All is computed in float32, or
        float64. For rows and blocks one pass reads x and writes both. The scale of a whole tensor is known only when
        all of it was read, so that to compute it takes a second pass; a given one, such as an earlier one, takes one.

    Gradient:
        None: this is for inference. PyTorch refuses an argument that requires a gradient, unless under
        torch.no_grad(), and TensorFlow one that a tape watches, unless it is given as tf.stop_gradient(x).

    Raises:
        RuntimeError (PyTorch), LookupError (TensorFlow), ValueError (JAX): an argument requires a gradient.
        ValueError: `activation`, `scaling` or `dtype` is not one of those above.

    PyTorch:
        >>> y, scale = fo.bias_act_float8(torch.tensor([[1.0, -3.5, 7.0]]), activation="identity")
        >>> y.float(), scale
        (tensor([[  64., -224.,  448.]]), tensor([[0.0156]]))

    TensorFlow:
        >>> y, scale = fo.bias_act_float8(tf.constant([[1.0, -3.5, 7.0]]), activation="identity")
        >>> tf.cast(y, tf.float32).numpy(), scale.numpy()
        (array([[  64., -224.,  448.]], dtype=float32), array([[0.015625]], dtype=float32))

    Source: Micikevicius et al., "FP8 formats for deep learning", 2022.
    """
    if more or others:
        refuse("bias_act_float8", more, others)
    name = dtype_name(dtype)
    y, scales = ops.bias_act_float8(x, bias, scale, activation=activation, scaling=scaling, dtype=name)
    return y, scales if scale is None else scale


def gated_act(
    gate: Tensor, up: Tensor | None = None, activation: Activation = "silu", *more: Refused, **others: Refused
) -> Tensor:
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
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        >>> fo.gated_act(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), activation="relu")
        tensor([[3., 8.]])

    TensorFlow:
        >>> fo.gated_act(tf.constant([[1.0, 2.0, 3.0, 4.0]]), activation="relu").numpy().round(4)
        array([[3., 8.]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if more or others:
        refuse("gated_act", more, others)
    return ops.gated_act(gate, up, activation=activation)


def gated_act_float8(
    gate: Tensor,
    up: Tensor | None = None,
    activation: Activation = "silu",
    *more: Refused,
    scale: Tensor | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    **others: Refused,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with act(gate) · up ≈ y · scale, y in 8 bits, rounded and scaled as by `bias_act_float8`.

    Args:
        gate: as in `gated_act`, with at least one dimension.
        up: as in `gated_act`.
        activation: as in `bias_act`.
        scale, scaling, dtype: as in `bias_act_float8`.

    Returns:
        y, of gate's shape, or [..., D] if it is packed, and its scale.

    Gradient, Raises: as in `bias_act_float8`.

    PyTorch:
        >>> y, scale = fo.gated_act_float8(torch.tensor([[1.0, 2.0, 3.5, 3.5]]), activation="relu")
        >>> y.float() * scale
        tensor([[3.5000, 7.0000]])

    TensorFlow:
        >>> y, scale = fo.gated_act_float8(tf.constant([[1.0, 2.0, 3.5, 3.5]]), activation="relu")
        >>> (tf.cast(y, tf.float32) * scale).numpy()
        array([[3.5, 7. ]], dtype=float32)
    """
    if more or others:
        refuse("gated_act_float8", more, others)
    name = dtype_name(dtype)
    y, scales = ops.gated_act_float8(gate, up, scale, activation=activation, scaling=scaling, dtype=name)
    return y, scales if scale is None else scale


def swiglu(gate: Tensor, up: Tensor | None = None, *more: Refused, **others: Refused) -> Tensor:
    """silu(gate) · up: `gated_act` with `silu`.

    Args:
        gate, up: as in `gated_act`.

    Returns, Gradient, Source: as in `gated_act`.

    PyTorch:
        >>> fo.swiglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.1932, 7.0464]])

    TensorFlow:
        >>> fo.swiglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[2.1932, 7.0464]], dtype=float32)
    """
    if more or others:
        refuse("swiglu", more, others)
    try:
        return ops.gated_act(gate, up, activation="silu")
    except Exception as error:
        raise renamed(error, "gated_act", "swiglu") from None


def geglu(
    gate: Tensor, up: Tensor | None = None, *more: Refused, approximate: Approximation = "none", **others: Refused
) -> Tensor:
    """gelu(gate) · up: `gated_act` with `gelu` or `gelu_tanh`.

    Args:
        gate, up: as in `gated_act`.
        approximate: "none" for `gelu`, "tanh" for `gelu_tanh`.

    Returns, Gradient, Source: as in `gated_act`.

    Raises:
        ValueError: `approximate` is neither of the two.

    PyTorch:
        >>> fo.geglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.5240, 7.8180]])

    TensorFlow:
        >>> fo.geglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[2.524, 7.818]], dtype=float32)
    """
    if more or others:
        refuse("geglu", more, others)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"fusedops.geglu: approximate must be 'none' or 'tanh'; got {approximate!r}")
    try:
        return ops.gated_act(gate, up, activation="gelu_tanh" if approximate == "tanh" else "gelu")
    except Exception as error:
        raise renamed(error, "gated_act", "geglu") from None


def reglu(gate: Tensor, up: Tensor | None = None, *more: Refused, **others: Refused) -> Tensor:
    """relu(gate) · up: `gated_act` with `relu`.

    Args:
        gate, up: as in `gated_act`.

    Returns, Gradient, Source: as in `gated_act`.

    PyTorch:
        >>> fo.reglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[3., 8.]])

    TensorFlow:
        >>> fo.reglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[3., 8.]], dtype=float32)
    """
    if more or others:
        refuse("reglu", more, others)
    try:
        return ops.gated_act(gate, up, activation="relu")
    except Exception as error:
        raise renamed(error, "gated_act", "reglu") from None
