"""The parts of attention other than matrix products."""

from __future__ import annotations

from fusedops.functions.common import Tensor, ops


def softmax(x: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """exp(scale·x) / Σ exp(scale·x), over the last dimension.

    Masked elements are ignored, even NaN and infinity: their probability and their gradient are zero. A row in which
    every element is masked is all zeros. Elements above the causal diagonal are not even read.

    Args:
        x: float64, float32, float16 or bfloat16, [..., columns].
        scale: a number, used unrounded in the compute dtype.
        mask: bool, of x's shape or broadcastable to it; True keeps an element.
        causal: keeps column j of row i where j ≤ i + columns - rows, on the last two dimensions, so that the last row
            sees all columns. x then needs two dimensions. An element must be kept by both the mask and causality.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. A row's bits do not
        depend on the other rows.

    Gradient:
        dx = scale · y · (dy - Σ dy·y), with the sum over the row.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        `scale` is a constant of compiled code: torch.compile compiles again for each value.

        >>> fo.softmax(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), causal=True)
        tensor([[1.0000, 0.0000],
                [0.2689, 0.7311]])

    TensorFlow:
        >>> fo.softmax(tf.constant([[1.0, 2.0], [3.0, 4.0]]), causal=True).numpy().round(4)
        array([[1.    , 0.    ],
               [0.2689, 0.7311]], dtype=float32)

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.
    """
    return ops.softmax(x, mask, scale=scale, causal=causal)
