"""The public functions: one signature and one description each, for every framework.

They are written over `ops`, a framework's set of operators. `fusedops.torch` and `fusedops.tf` hold copies of these
functions which find their own `ops` (and what they call each other by), so that a user calls
`fusedops.torch.axpby(a, x, b)` or `fusedops.tf.axpby(a, x, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

Tensor = Any
ops: Any = None  # each package has its own


def public(package: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The functions, by name, as members of the package whose globals are given; `ops` is among these.

    A copy costs nothing at a call, unlike a wrapper, and pickles by its name in the package. Its globals are the
    package's: it can use `ops` and the other public functions, and nothing else of this module.
    """
    copies: dict[str, Callable[..., Any]] = {}
    for function in PUBLIC:
        copy = FunctionType(function.__code__, package, function.__name__, function.__defaults__)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__annotations__ = function.__annotations__
        copy.__doc__ = function.__doc__
        copy.__module__ = package["__name__"]
        copies[function.__name__] = copy
    return copies


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


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """a @ b, with either matrix transposed on the way.

    Transposed matrices, and rows that are spaced apart, are read where they lie: nothing is copied.

    Args:
        a: [..., M, K], or [..., K, M] with `transpose_a`; float64, float32, float16 or bfloat16.
        b: [..., K, N], or [..., N, K] with `transpose_b`; a's dtype; its leading dimensions are a's, or none.
        transpose_a: whether a's last two dimensions are exchanged.
        transpose_b: whether b's last two dimensions are exchanged.

    Returns:
        [..., M, N], of a's dtype. 16-bit inputs are summed in float32 over all of K and rounded once; float32 is
        computed in float32, without TF32. Under PyTorch's autocast both inputs are cast to its dtype first.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
    """
    return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


PUBLIC: tuple[Any, ...] = (axpby, add, scale, relu, polynomial_activation, matmul)
