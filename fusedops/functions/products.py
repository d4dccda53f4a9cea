"""Matrix products."""

from __future__ import annotations

from fusedops.functions.common import Tensor, ops


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
