"""Elementwise functions."""

from __future__ import annotations

from collections.abc import Sequence

from fusedops.functions.common import Tensor, ops


def axpby(a: float | Tensor, x: Tensor, b: Tensor) -> Tensor:
    """a·x + b, in one pass.

    The gradients of `a` and `x` come from one pass over the upstream gradient and x; b's is the upstream gradient.

    Args:
        a: a number, used unrounded in the compute dtype; or a tensor of one element, of x's dtype or float32.
        x: float64, float32, float16 or bfloat16, of any shape.
        b: x's shape and dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: BLAS's axpy, with a second vector instead of an update in place.
    """
    return ops.axpby(a, x, b)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        y: x's shape and dtype; there is no broadcasting.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
    """
    return ops.add(x, y)


def scale(x: Tensor, factor: float | Tensor) -> Tensor:
    """x · factor.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        factor: a number, used unrounded in the compute dtype; or a tensor of one element, of x's dtype or float32.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
    """
    return ops.scale(x, factor)


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    The gradient at 0 is 0. A NaN stays NaN and lets its gradient pass.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): the dtype is not as above.

    Source: Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", 2010.
    """
    return ops.relu(x)


def polynomial_activation(x: Tensor, coefficients: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor:
    """c₀ + c₁·x + c₂·x² + ..., by Horner's rule.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        coefficients: 1 to 8 numbers, from the constant term up; used unrounded in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): the dtype or the number of coefficients
            is not as above.

    Source: Horner, "A new method of solving numerical equations of all orders, by continuous approximation", 1819.
    """
    return ops.polynomial_activation(x, coefficients=coefficients)
