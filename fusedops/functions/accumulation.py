"""Sums of gradients, in place."""

from __future__ import annotations

from fusedops.functions.common import Refused, Tensor, Variable, ops
from fusedops.functions.refusal import refuse


def accumulate_matmul(
    total: Variable,
    a: Tensor,
    b: Tensor,
    *more: Refused,
    transpose_a: bool = False,
    transpose_b: bool = False,
    **others: Refused,
) -> Tensor | None:
    """total = total + a @ b, in place; each matrix may be transposed.

    This sums the gradient of a weight, dyᵀ @ x, over the parts of a batch: of 16-bit matrices in float32, never rounded
    to 16 bits. The K products of an element are summed before they are added to total.

    Args:
        total: [..., M, N], float64 if a is, else float32. In PyTorch a tensor, in TensorFlow a variable of its own or
            of Keras's: it is updated. In JAX an array, which stays as it is.
        a, b, transpose_a, transpose_b: as in `matmul`.

    Returns:
        Nothing; in JAX the new total, which a jitted function with a donated total has in the same memory. The order of
        the sums follows from sizes, layouts and alignment alone, as in `matmul`.

    Gradient:
        None. In PyTorch, neither total nor the matrices may require one, unless the call is under torch.no_grad() or in
        a backward.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the
            wrong shape or dtype. total is then as before.
        TypeError (TensorFlow): total is not a variable.

    PyTorch:
        >>> total = torch.ones(1, 1)
        >>> fo.accumulate_matmul(total, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
        >>> total
        tensor([[12.]])

    TensorFlow:
        >>> total = tf.Variable(tf.ones([1, 1]))
        >>> fo.accumulate_matmul(total, tf.constant([[1.0, 2.0]]), tf.constant([[3.0], [4.0]]))
        >>> total.numpy()
        array([[12.]], dtype=float32)
    """
    if more or others:
        refuse("accumulate_matmul", more, others)
    return ops.accumulate_matmul(total, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
