"""Rotary embedding."""

from __future__ import annotations

from fusedops.functions.common import Refused, Tensor, ops
from fusedops.functions.refusal import refuse


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *more: Refused, seq_dim: int = -3, interleaved: bool = False, **others: Refused
) -> Tensor:
    """Rotary embedding: each pair of features (x₁, x₂) becomes (x₁·cos − x₂·sin, x₂·cos + x₁·sin).

    Slices of a packed tensor and transposed heads are read in place: nothing is copied.

    Args:
        x: [..., T, H, D]: T positions of H heads with D features; with `seq_dim=-2` [..., T, D], such as [B, H, T, D].
            float64, float32, float16 or bfloat16.
        cos: [T, R/2] or [B, T, R/2], where B is x's first dimension and R ≤ D; features from R on pass unchanged. Of
            x's dtype, or float32 beside a 16-bit x.
        sin: cos's shape and dtype.
        seq_dim: the dimension of x that holds the positions, -3 or -2.
        interleaved: True if pair i is features 2i and 2i + 1, as in GPT-J, instead of i and i + R/2, as in GPT-NeoX.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx is dy, rotated by the opposite angles. cos and sin have no gradient.

    PyTorch:
        >>> quarter_turn = torch.tensor([[0.0]]), torch.tensor([[1.0]])
        >>> fo.rope(torch.tensor([[[1.0, 2.0]]]), *quarter_turn)
        tensor([[[-2.,  1.]]])

    TensorFlow:
        >>> quarter_turn = tf.constant([[0.0]]), tf.constant([[1.0]])
        >>> fo.rope(tf.constant([[[1.0, 2.0]]]), *quarter_turn).numpy()
        array([[[-2.,  1.]]], dtype=float32)

    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.
    """
    if more or others:
        refuse("rope", more, others)
    return ops.rope(x, cos, sin, seq_dim=seq_dim, interleaved=interleaved)
