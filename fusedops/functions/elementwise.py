"""Elementwise functions."""

from __future__ import annotations

from collections.abc import Sequence

from fusedops.functions.common import Tensor, ops


def axpby(a: float | Tensor, x: Tensor, b: Tensor) -> Tensor:
    """a·x + b, in one pass.

    Args:
        a: a number, used unrounded in the compute dtype, or a tensor with one element, of x's dtype or float32.
        x: float64, float32, float16 or bfloat16, any shape.
        b: x's shape and dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        da = Σ dy·x, dx = a·dy and db = dy. One pass over dy and x computes da and dx.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        Under torch.compile a number that varies does not cause a recompilation.

        >>> fo.axpby(0.5, torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0]))
        tensor([2., 3.])

    TensorFlow:
        >>> fo.axpby(0.5, tf.constant([2.0, 4.0]), tf.constant([1.0, 1.0])).numpy()
        array([2., 3.], dtype=float32)

    Source: BLAS's axpy, with a second vector instead of an update in place.
    """
    return ops.axpby(a, x, b)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        y: x's shape and dtype; there is no broadcasting.

    Returns:
        A tensor of x's shape and dtype.

    Gradient:
        Of x and of y, the upstream gradient.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        >>> fo.add(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        tensor([4., 6.])

    TensorFlow:
        >>> fo.add(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])).numpy()
        array([4., 6.], dtype=float32)
    """
    return ops.add(x, y)


def scale(x: Tensor, factor: float | Tensor) -> Tensor:
    """x · factor.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        factor: a number, used unrounded in the compute dtype, or a tensor with one element, of x's dtype or float32.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = factor·dy and dfactor = Σ dy·x.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        Under torch.compile a number that varies does not cause a recompilation.

        >>> fo.scale(torch.tensor([1.0, 2.0]), 0.5)
        tensor([0.5000, 1.0000])

    TensorFlow:
        >>> fo.scale(tf.constant([1.0, 2.0]), 0.5).numpy()
        array([0.5, 1. ], dtype=float32)
    """
    return ops.scale(x, factor)


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    Args:
        x: float64, float32, float16 or bfloat16, any shape.

    Returns:
        A tensor of x's shape and dtype. A NaN stays NaN.

    Gradient:
        dx = dy where x > 0, and 0 elsewhere, also at 0. A NaN passes its gradient on.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): x has the wrong dtype.

    PyTorch:
        >>> fo.relu(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])

    TensorFlow:
        >>> fo.relu(tf.constant([-1.0, 2.0])).numpy()
        array([0., 2.], dtype=float32)

    Source: Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", 2010.
    """
    return ops.relu(x)


def polynomial_activation(x: Tensor, coefficients: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor:
    """c₀ + c₁·x + c₂·x² + ..., by Horner's rule.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        coefficients: 1 to 8 numbers, from the constant term up, used unrounded in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = dy · (c₁ + 2·c₂·x + 3·c₃·x² + ...). The coefficients have no gradient.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): x has the wrong dtype, or there are no
            coefficients or more than 8.

    PyTorch:
        >>> fo.polynomial_activation(torch.tensor([1.0, 2.0]), (1.0, 0.0, 3.0))
        tensor([ 4., 13.])

    TensorFlow:
        >>> fo.polynomial_activation(tf.constant([1.0, 2.0]), (1.0, 0.0, 3.0)).numpy()
        array([ 4., 13.], dtype=float32)

    Source: Horner, "A new method of solving numerical equations of all orders, by continuous approximation", 1819.
    """
    return ops.polynomial_activation(x, coefficients=coefficients)
