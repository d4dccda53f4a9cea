"""Normalizations of the last dimension."""

from __future__ import annotations

from typing import Any

from fusedops.functions.common import Refused, Scaling, Tensor, dtype_name, ops, seed_of
from fusedops.functions.refusal import refuse


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    **others: Refused,
) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · (weight + weight_offset), over the last dimension.

    A row's result does not depend on the other rows.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        eps: at least 0; added to the mean of squares, in the compute dtype.
        weight_offset: added to the weight in the compute dtype; 1 for weights that are stored as the difference from 1,
            as in Gemma. Unused without a weight.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Gradient:
        With r = rsqrt(mean(x²) + eps), n = x·r and g = dy·(weight + weight_offset): dx = r·(g - n·mean(g·n)), and
        dweight is the sum of dy·n over the rows. One pass computes both.

    PyTorch:
        `eps` is a constant of compiled code: torch.compile compiles again for each value.

        >>> fo.rms_norm(torch.tensor([[3.0, 4.0]]))
        tensor([[0.8485, 1.1314]])

    TensorFlow:
        >>> fo.rms_norm(tf.constant([[3.0, 4.0]])).numpy().round(4)
        array([[0.8485, 1.1314]], dtype=float32)

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if more or others:
        refuse("rms_norm", more, others)
    y, _ = ops.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
    return y


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    dropout: float = 0.0,
    seed: Tensor | tuple[int, int] | None = None,
    **others: Refused,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) with s = x + residual, or s = dropout(x) + residual, in one pass.

    s is rounded to x's dtype before it is normalized, as if the steps were separate operators.

    Args:
        x: as in `rms_norm`.
        residual: x's shape and dtype.
        weight, eps, weight_offset: as in `rms_norm`.
        dropout: the probability with which an element of x is dropped, from 0 to below 1.
        seed: as in `dropout`, which drops the same with it. Unused if `dropout` is 0.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Gradient:
        x and residual have the same gradient: that of `rms_norm` at s, plus the gradient of the second result. With
        dropout, x has `dropout` of it, with the same seed.

    Source: as in `rms_norm`.

    PyTorch:
        `eps` and `dropout` are constants of compiled code: torch.compile compiles again for each value.

        >>> fo.add_rms_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))

    TensorFlow:
        >>> y, s = fo.add_rms_norm(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[0.8485, 1.1314]], dtype=float32), array([[3., 4.]], dtype=float32))
    """
    if more or others:
        refuse("add_rms_norm", more, others)
    seeds, rate = (None, 0.0) if dropout == 0 else (seed_of("add_rms_norm", seed, x), dropout)
    y, s, _ = ops.add_rms_norm(x, residual, weight, seeds, eps=eps, weight_offset=weight_offset, dropout=rate)
    return y, s


def rms_norm_rope(
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *more: Refused,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    seq_dim: int = -3,
    interleaved: bool = False,
    **others: Refused,
) -> Tensor:
    """rope(rms_norm(x, weight), cos, sin): queries or keys are normalized and rotated in one pass.

    The norm is over the features of each head, as in Qwen 3 and Gemma 3. Slices of a packed tensor and transposed heads
    are read in place: nothing is copied.

    Args:
        x: as in `rope`.
        weight: [D], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        cos, sin: as in `rope`.
        eps, weight_offset: as in `rms_norm`.
        seq_dim, interleaved: as in `rope`.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once, after the rotation. A
        row's bits do not depend on the other rows.

    Gradient:
        That of `rms_norm` for dy, rotated by the opposite angles, in one pass. cos and sin have no gradient.

    PyTorch:
        >>> quarter_turn = torch.tensor([[0.0]]), torch.tensor([[1.0]])
        >>> fo.rms_norm_rope(torch.tensor([[[3.0, 4.0]]]), None, *quarter_turn)
        tensor([[[-1.1314,  0.8485]]])

    TensorFlow:
        >>> quarter_turn = tf.constant([[0.0]]), tf.constant([[1.0]])
        >>> fo.rms_norm_rope(tf.constant([[[3.0, 4.0]]]), None, *quarter_turn).numpy().round(4)
        array([[[-1.1314,  0.8485]]], dtype=float32)

    Source: Henry et al., "Query-key normalization for transformers", 2020.
    """
    if more or others:
        refuse("rms_norm_rope", more, others)
    norm = {"eps": eps, "weight_offset": weight_offset}
    y, _ = ops.rms_norm_rope(x, weight, cos, sin, **norm, seq_dim=seq_dim, interleaved=interleaved)
    return y


def rms_norm_float8(
    x: Tensor,
    weight: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale: Tensor | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    **others: Refused,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with rms_norm(x) ≈ y · scale, y in 8 bits, rounded and scaled as by `bias_act_float8`.

    Args:
        x, weight, eps, weight_offset: as in `rms_norm`.
        scale, scaling, dtype: as in `bias_act_float8`.

    Returns:
        y, of x's shape, and its scale. The normalized values are rounded once, from float32, or float64.

    Gradient: as in `bias_act_float8`.

    Raises:
        RuntimeError (PyTorch), LookupError (TensorFlow), ValueError (JAX): an argument requires a gradient.
        ValueError: `scaling` or `dtype` is not one of those of `bias_act_float8`.

    Source: as in `rms_norm`.

    PyTorch:
        >>> y, scale = fo.rms_norm_float8(torch.tensor([[1.0, 2.0]]))
        >>> y.float() * scale
        tensor([[0.6325, 1.2649]])

    TensorFlow:
        >>> y, scale = fo.rms_norm_float8(tf.constant([[1.0, 2.0]]))
        >>> (tf.cast(y, tf.float32) * scale).numpy().round(4)
        array([[0.6325, 1.2649]], dtype=float32)
    """
    if more or others:
        refuse("rms_norm_float8", more, others)
    float8 = dtype_name(dtype)
    y, scales = ops.rms_norm_float8(
        x, weight, scale, eps=eps, weight_offset=weight_offset, scaling=scaling, dtype=float8
    )
    return y, scales if scale is None else scale


def add_rms_norm_float8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale: Tensor | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    **others: Refused,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, scale, s) with s = x + residual and rms_norm(s) ≈ y · scale, y in 8 bits, as by `bias_act_float8`.

    Args:
        x, residual, weight, eps, weight_offset: as in `add_rms_norm`.
        scale, scaling, dtype: as in `bias_act_float8`.

    Returns:
        y, of x's shape, its scale, and the sum for the next residual connection, in x's dtype.

    Gradient, Raises, Source: as in `rms_norm_float8`.

    PyTorch:
        >>> y, scale, s = fo.add_rms_norm_float8(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0]]))
        >>> y.float() * scale, s
        (tensor([[0.6325, 1.2649]]), tensor([[1., 2.]]))

    TensorFlow:
        >>> y, scale, s = fo.add_rms_norm_float8(tf.constant([[0.0, 1.0]]), tf.constant([[1.0, 1.0]]))
        >>> (tf.cast(y, tf.float32) * scale).numpy().round(4), s.numpy()
        (array([[0.6325, 1.2649]], dtype=float32), array([[1., 2.]], dtype=float32))
    """
    if more or others:
        refuse("add_rms_norm_float8", more, others)
    float8 = dtype_name(dtype)
    y, scales, s = ops.add_rms_norm_float8(
        x, residual, weight, scale, eps=eps, weight_offset=weight_offset, scaling=scaling, dtype=float8
    )
    return y, scales if scale is None else scale, s


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-5,
    **others: Refused,
) -> Tensor:
    """(x − mean(x)) · rsqrt(var(x) + eps) · weight + bias, over the last dimension.

    The variance is the biased one. It is computed from the deviations from the mean, so that a large mean causes no
    cancellation. A row's result does not depend on the other rows.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None adds nothing.
        eps: at least 0; added to the variance, in the compute dtype.

    Returns: as in `rms_norm`.

    Gradient:
        With r = rsqrt(var(x) + eps), n = (x − mean(x))·r and g = dy·weight: dx = r·(g − mean(g) − n·mean(g·n)); dweight
        is the sum of dy·n over the rows, dbias that of dy. One pass computes all three.

    PyTorch:
        `eps` is a constant of compiled code: torch.compile compiles again for each value.

        >>> fo.layer_norm(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[-1.2247,  0.0000,  1.2247]])

    TensorFlow:
        >>> fo.layer_norm(tf.constant([[1.0, 2.0, 3.0]])).numpy().round(4)
        array([[-1.2247,  0.    ,  1.2247]], dtype=float32)

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if more or others:
        refuse("layer_norm", more, others)
    y, _, _ = ops.layer_norm(x, weight, bias, eps=eps)
    return y


def layer_norm_float8(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-5,
    scale: Tensor | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    **others: Refused,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with layer_norm(x) ≈ y · scale, y in 8 bits, rounded and scaled as by `bias_act_float8`.

    Args:
        x, weight, bias, eps: as in `layer_norm`.
        scale, scaling, dtype: as in `bias_act_float8`.

    Returns, Gradient, Raises: as in `rms_norm_float8`.

    Source: as in `layer_norm`.

    PyTorch:
        >>> y, scale = fo.layer_norm_float8(torch.tensor([[1.0, 2.0, 3.0]]))
        >>> y.float() * scale
        tensor([[-1.2247,  0.0000,  1.2247]])

    TensorFlow:
        >>> y, scale = fo.layer_norm_float8(tf.constant([[1.0, 2.0, 3.0]]))
        >>> (tf.cast(y, tf.float32) * scale).numpy().round(4)
        array([[-1.2247,  0.    ,  1.2247]], dtype=float32)
    """
    if more or others:
        refuse("layer_norm_float8", more, others)
    float8 = dtype_name(dtype)
    y, scales = ops.layer_norm_float8(x, weight, bias, scale, eps=eps, scaling=scaling, dtype=float8)
    return y, scales if scale is None else scale


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *more: Refused,
    eps: float = 1e-5,
    dropout: float = 0.0,
    seed: Tensor | tuple[int, int] | None = None,
    **others: Refused,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(s), s) with s = x + residual, or s = dropout(x) + residual, in one pass.

    s is rounded to x's dtype before it is normalized, as if the steps were separate operators.

    Args:
        x, residual: as in `add_rms_norm`.
        weight, bias, eps: as in `layer_norm`.
        dropout, seed: as in `add_rms_norm`.

    Returns: as in `add_rms_norm`.

    Gradient:
        x and residual have the same gradient: that of `layer_norm` at s, plus the gradient of the second result. With
        dropout, x has `dropout` of it, with the same seed.

    Source: as in `layer_norm`.

    PyTorch:
        `eps` and `dropout` are constants of compiled code: torch.compile compiles again for each value.

        >>> fo.add_layer_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        (tensor([[-1.0000,  1.0000]]), tensor([[3., 4.]]))

    TensorFlow:
        >>> y, s = fo.add_layer_norm(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[-1.,  1.]], dtype=float32), array([[3., 4.]], dtype=float32))
    """
    if more or others:
        refuse("add_layer_norm", more, others)
    seeds, rate = (None, 0.0) if dropout == 0 else (seed_of("add_layer_norm", seed, x), dropout)
    y, s, _, _ = ops.add_layer_norm(x, residual, weight, bias, seeds, eps=eps, dropout=rate)
    return y, s
