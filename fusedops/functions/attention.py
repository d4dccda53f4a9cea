"""What attention is made of, beside matrix products."""

from __future__ import annotations

from fusedops.functions.common import Tensor, ops


def softmax(x: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """exp(scale·x) / Σ exp(scale·x), over the last dimension, of what is not masked.

    A masked element counts as not there, whatever its value; its share and its gradient are zero. A row of which
    nothing is left is all zeros. What causality masks is not even read.

    Args:
        x: float64, float32, float16 or bfloat16, [..., columns].
        scale: a number, used unrounded until it meets x in the compute dtype.
        mask: bool, of x's shape or broadcastable to it; True keeps an element.
        causal: keeps column j of row i where j ≤ i + columns - rows, on the last two dimensions: the last row sees all
            columns. x then has at least two dimensions. Together with a mask, both must keep an element.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. A row's bits do not
        depend on the other rows.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.
    """
    return ops.softmax(x, mask, scale=scale, causal=causal)
