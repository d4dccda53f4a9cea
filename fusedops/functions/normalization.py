"""Normalizations of the last dimension."""

from __future__ import annotations

from fusedops.functions.common import Tensor, ops


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, weight_offset: float = 0.0) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · (weight + weight_offset), over the last dimension.

    A row's result does not depend on the other rows. The gradients of x and weight come from one pass.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        eps: added to the mean of squares; used in the compute dtype.
        weight_offset: added to the weight in the compute dtype; 1 for weights that are stored as the difference from 1,
            as Gemma's are. Without a weight it is not used.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    y, _ = ops.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) with s = x + residual, in one pass.

    s is rounded to x's dtype first and then normalized, as if both steps were separate operators.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        residual: x's shape and dtype.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        eps: added to the mean of squares; used in the compute dtype.
        weight_offset: added to the weight in the compute dtype; without a weight it is not used.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    y, s, _ = ops.add_rms_norm(x, residual, weight, eps=eps, weight_offset=weight_offset)
    return y, s


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """(x − mean(x)) · rsqrt(var(x) + eps) · weight + bias, over the last dimension.

    The variance is the biased one, computed from the deviations from the mean: it loses nothing to cancellation where
    the mean is large. A row's result does not depend on the other rows. All gradients come from one pass.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None: nothing is added.
        eps: added to the variance; used in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    y, _, _ = ops.layer_norm(x, weight, bias, eps=eps)
    return y


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """(layer_norm(s), s) with s = x + residual, in one pass.

    s is rounded to x's dtype first and then normalized, as if both steps were separate operators.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        residual: x's shape and dtype.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None: nothing is added.
        eps: added to the variance; used in the compute dtype.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    y, s, _, _ = ops.add_layer_norm(x, residual, weight, bias, eps=eps)
    return y, s
