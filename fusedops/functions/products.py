"""Matrix products."""

from __future__ import annotations

from fusedops.functions.common import Tensor, ops


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """a @ b; each matrix may be transposed.

    Transposed matrices and strided rows are read in place: nothing is copied.

    Args:
        a: [..., M, K], or [..., K, M] with `transpose_a`; float64, float32, float16 or bfloat16.
        b: [..., K, N], or [..., N, K] with `transpose_b`; of a's dtype. Its leading dimensions are a's, or it has none.
        transpose_a: whether a's last two dimensions are exchanged.
        transpose_b: whether b's last two dimensions are exchanged.

    Returns:
        [..., M, N], of a's dtype. 16-bit inputs are summed in float32 over all of K and rounded once. float32 is
        computed in float32, without TF32.

    Gradient:
        da = dy @ bᵀ and db = aᵀ @ dy, for matrices that are not transposed. The gradient of one b for a batch of a is
        summed over the batch.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        Under autocast both inputs are cast to its dtype first, unless they are float64.

        >>> fo.matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), transpose_b=True)
        tensor([[11.]])

    TensorFlow:
        >>> fo.matmul(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0]]), transpose_b=True).numpy()
        array([[11.]], dtype=float32)
    """
    return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
