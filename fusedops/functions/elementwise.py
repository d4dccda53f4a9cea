"""Elementwise functions."""

from __future__ import annotations

from collections.abc import Sequence

from fusedops.functions.common import Refused, Tensor, ops, seed_of
from fusedops.functions.refusal import refuse


def axpby(a: float | Tensor, x: Tensor, b: Tensor, *more: Refused, **others: Refused) -> Tensor:
    """a·x + b, in one pass.

    Args:
        a: a number, used unrounded in the compute dtype, or a tensor with one element, of x's dtype or float32.
        x: float64, float32, float16 or bfloat16, any shape.
        b: x's shape and dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        da = Σ dy·x, dx = a·dy and db = dy. One pass over dy and x computes da and dx.

    PyTorch:
        Under torch.compile a number that varies does not cause a recompilation.

        >>> fo.axpby(0.5, torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0]))
        tensor([2., 3.])

    TensorFlow:
        >>> fo.axpby(0.5, tf.constant([2.0, 4.0]), tf.constant([1.0, 1.0])).numpy()
        array([2., 3.], dtype=float32)

    Source: BLAS's axpy, with a second vector instead of an update in place.
    """
    if more or others:
        refuse("axpby", more, others)
    return ops.axpby(a, x, b)


def add(x: Tensor, y: Tensor, *more: Refused, **others: Refused) -> Tensor:
    """x + y.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        y: x's shape and dtype; there is no broadcasting.

    Returns:
        A tensor of x's shape and dtype.

    Gradient:
        Of x and of y, the upstream gradient.

    PyTorch:
        >>> fo.add(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        tensor([4., 6.])

    TensorFlow:
        >>> fo.add(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])).numpy()
        array([4., 6.], dtype=float32)
    """
    if more or others:
        refuse("add", more, others)
    return ops.add(x, y)


def scale(x: Tensor, factor: float | Tensor, *more: Refused, **others: Refused) -> Tensor:
    """x · factor.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        factor: a number, used unrounded in the compute dtype, or a tensor with one element, of x's dtype or float32.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = factor·dy and dfactor = Σ dy·x.

    PyTorch:
        Under torch.compile a number that varies does not cause a recompilation.

        >>> fo.scale(torch.tensor([1.0, 2.0]), 0.5)
        tensor([0.5000, 1.0000])

    TensorFlow:
        >>> fo.scale(tf.constant([1.0, 2.0]), 0.5).numpy()
        array([0.5, 1. ], dtype=float32)
    """
    if more or others:
        refuse("scale", more, others)
    return ops.scale(x, factor)


def dropout(
    x: Tensor, rate: float, seed: Tensor | tuple[int, int] | None = None, *more: Refused, **others: Refused
) -> Tensor:
    """x / (1 − rate) where an element is kept, else 0, also of NaN and infinity.

    Which elements are kept follows from the seed, the rate and an element's position in x, counted row by row: the same
    in all frameworks, on CPU and GPU, for any strides and dtype. No mask is stored: the backward draws it again.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        rate: the probability with which an element is dropped, from 0 to below 1.
        seed: int64 [2], a key and an offset, or a pair of integers. Calls with the same seed drop the same positions;
            those with the same key and another offset, such as the number of a step, have nothing to do with each
            other. In JAX also a key of jax.random. None: drawn by the framework's own generator, which JAX has not.
            int64 [5] if x is a part of a larger tensor: then `first`, `run` and `stride`. Element i of x is dropped as
            element first + i // run · stride + i % run of the larger one; with a run of 0, as element first + i.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = dropout(dy) with the same seed.

    PyTorch:
        Without a seed, torch.manual_seed repeats the call, as does the state that torch.utils.checkpoint keeps; a CUDA
        graph draws at each replay; torch.vmap asks for its `randomness`. With one, each call that vmap makes drops the
        same. `rate` is a constant of compiled code.

        >>> fo.dropout(torch.ones(8), 0.5, seed=(5, 0))
        tensor([2., 0., 2., 2., 0., 0., 2., 0.])

    TensorFlow:
        Without a seed, as tf.nn.dropout draws: tf.random.set_seed repeats a run, and each run of a graph draws anew.
        tf.recompute_grad then draws another one for the backward: give it a seed.

        >>> fo.dropout(tf.ones(8), 0.5, seed=(5, 0)).numpy()
        array([2., 0., 2., 2., 0., 0., 2., 0.], dtype=float32)

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014; the random
    numbers are those of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    if more or others:
        refuse("dropout", more, others)
    return ops.dropout(x, seed_of("dropout", seed, x), rate=rate)


def dropout_add(
    x: Tensor,
    residual: Tensor,
    rate: float,
    seed: Tensor | tuple[int, int] | None = None,
    *more: Refused,
    **others: Refused,
) -> Tensor:
    """residual + dropout(x), in one pass.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        residual: x's shape and dtype.
        rate: the probability with which an element of x is dropped, from 0 to below 1.
        seed: as in `dropout`, which drops the same with it.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = dropout(dy) with the same seed; of residual, the upstream gradient.

    PyTorch:
        Seeds and rates are those of `dropout`.

        >>> fo.dropout_add(torch.ones(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5, seed=(5, 0))
        tensor([3., 2., 5., 6.])

    TensorFlow:
        >>> fo.dropout_add(tf.ones(4), tf.constant([1.0, 2.0, 3.0, 4.0]), 0.5, seed=(5, 0)).numpy()
        array([3., 2., 5., 6.], dtype=float32)
    """
    if more or others:
        refuse("dropout_add", more, others)
    return ops.dropout_add(x, residual, seed_of("dropout_add", seed, x), rate=rate)


def relu(x: Tensor, *more: Refused, **others: Refused) -> Tensor:
    """max(x, 0).

    Args:
        x: float64, float32, float16 or bfloat16, any shape.

    Returns:
        A tensor of x's shape and dtype. A NaN stays NaN.

    Gradient:
        dx = dy where x > 0, and 0 elsewhere, also at 0. A NaN passes its gradient on.

    PyTorch:
        >>> fo.relu(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])

    TensorFlow:
        >>> fo.relu(tf.constant([-1.0, 2.0])).numpy()
        array([0., 2.], dtype=float32)

    Source: Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", 2010.
    """
    if more or others:
        refuse("relu", more, others)
    return ops.relu(x)


def polynomial_activation(
    x: Tensor, coefficients: Sequence[float] = (1.0, 1.0, 1.0), *more: Refused, **others: Refused
) -> Tensor:
    """c₀ + c₁·x + c₂·x² + ..., by Horner's rule.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        coefficients: 1 to 8 numbers, from the constant term up, used unrounded in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = dy · (c₁ + 2·c₂·x + 3·c₃·x² + ...). The coefficients have no gradient.

    PyTorch:
        >>> fo.polynomial_activation(torch.tensor([1.0, 2.0]), (1.0, 0.0, 3.0))
        tensor([ 4., 13.])

    TensorFlow:
        >>> fo.polynomial_activation(tf.constant([1.0, 2.0]), (1.0, 0.0, 3.0)).numpy()
        array([ 4., 13.], dtype=float32)

    Source: Horner, "A new method of solving numerical equations of all orders, by continuous approximation", 1819.
    """
    if more or others:
        refuse("polynomial_activation", more, others)
    return ops.polynomial_activation(x, coefficients=coefficients)
