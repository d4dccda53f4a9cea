"""Mixtures of experts: grouped products, and whole layers of experts."""

from __future__ import annotations

from typing import Any

from fusedops.functions.common import Activation, Refused, Tensor, may_need_gradient, ops
from fusedops.functions.refusal import refuse


def grouped_matmul(
    x: Tensor,
    weights: Tensor,
    offsets: Tensor,
    *more: Refused,
    transpose_weights: bool = True,
    **others: Refused,
) -> Tensor:
    """Rows offsets[e] to offsets[e + 1] of x, times weights[e]ᵀ, for each group e.

    Offsets are read where the product is computed, without a synchronization with the host. Groups have any sizes.

    Args:
        x: [N, in], float64, float32, float16 or bfloat16.
        weights: [E, out, in], or [E, in, out] if `transpose_weights` is false; of x's dtype.
        offsets: int32 [E + 1], ascending from 0 to at most N.
        transpose_weights: True if the weights are [E, out, in].

    Returns:
        [N, out], of x's dtype; 0 in rows without a group. Sums and rounding are `matmul`'s.

    Gradient:
        dx is the grouped product of dy by the weights transposed. dweights[e] is dyᵀ x over the rows of group e, and 0
        for an empty group.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX): an
            argument has the wrong shape or dtype. On a CPU also: offsets do not ascend from 0 to at most N. A GPU
            cannot raise: there, each offset counts as the largest up to it, within [0, N], so that nothing outside is
            read, and rows before the first offset have no group either.

    PyTorch:
        Under autocast x and the weights are cast to its dtype first, unless they are float64.

        >>> x, weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> fo.grouped_matmul(x, weights, torch.tensor([0, 1, 2], dtype=torch.int32))
        tensor([[1.],
                [4.]])

    TensorFlow:
        >>> x, weights = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> fo.grouped_matmul(x, weights, tf.constant([0, 1, 2])).numpy()
        array([[1.],
               [4.]], dtype=float32)
    """
    if more or others:
        refuse("grouped_matmul", more, others)
    return ops.grouped_matmul(x, weights, offsets, transpose_weights=transpose_weights)


def experts(
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    gate_up: Tensor,
    down: Tensor,
    *more: Refused,
    activation: Activation = "silu",
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    transpose_weight: bool = True,
    interleaved: bool = False,
    limit: float = 0.0,
    alpha: float = 1.0,
    shift: float = 0.0,
    **others: Refused,
) -> Tensor:
    """Σₖ weight[t, k] · (gated feed-forward layer number index[t, k])(x[t]), for every token t.

    A layer e computes (act(α·g)/α · (u + shift)) down[e]ᵀ + down_bias[e], with g and u the halves of
    x gate_up[e]ᵀ + gate_up_bias[e]. Tokens are sorted by their experts, whose products are grouped ones.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16.
        index: int32 or int64 [..., K], the experts of each token. One outside of [0, E) contributes nothing.
        weight: [..., K], the router's weights; of x's dtype or float32.
        gate_up: [E, 2F, in], or [E, in, 2F] if `transpose_weight` is false; of x's dtype. F gates, then F ups.
        down: [E, out, F], or [E, F, out]; of x's dtype.
        activation: as in `bias_act`.
        gate_up_bias: [E, 2F], of x's dtype.
        down_bias: [E, out], of x's dtype.
        transpose_weight: True if `gate_up` and `down` are [E, out, in]. It does not concern `weight`.
        interleaved: True if gates and ups alternate in `gate_up`, as in gpt-oss.
        limit: a number. Gates are at most `limit`, and ups in [-limit, limit]; 0 is no limit.
        alpha: a number above 0, the α above.
        shift: a number, added to the ups.

    Returns:
        [..., out], of x's dtype. Sums and their rounding are `matmul`'s. The gated values and the results of the second
        product are rounded to x's dtype. g and u are rounded before the gate unless one kernel computes both. The sum
        over k is in order, in the compute dtype.

    Gradient:
        For x, weight, gate_up, down and both biases. With h the gated values and dh = dy down[e], rounded to x's dtype,
        dweight = Σ dh · h + Σ dy · down_bias[e], so that the second product need not be saved. g and u are saved,
        rounded, only if a gradient is wanted when `experts` is called; otherwise the backward computes them again, with
        the same bits.

    Raises:
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        Under autocast all floating inputs are cast to its dtype first, unless they are float64.

        >>> gate_up, down = torch.ones(2, 2, 1), torch.tensor([[[1.0]], [[10.0]]])
        >>> index, weight = torch.tensor([[0, 1], [1, -1]]), torch.tensor([[0.5, 0.5], [1.0, 1.0]])
        >>> fo.experts(torch.tensor([[1.0], [2.0]]), index, weight, gate_up, down, activation="relu")
        tensor([[ 5.5000],
                [40.0000]])

    TensorFlow:
        >>> gate_up, down = tf.ones([2, 2, 1]), tf.constant([[[1.0]], [[10.0]]])
        >>> index, weight = tf.constant([[0, 1], [1, -1]]), tf.constant([[0.5, 0.5], [1.0, 1.0]])
        >>> fo.experts(tf.constant([[1.0], [2.0]]), index, weight, gate_up, down, activation="relu").numpy()
        array([[ 5.5],
               [40. ]], dtype=float32)
    """
    if more or others:
        refuse("experts", more, others)
    inputs = (x, index, weight, gate_up, down, gate_up_bias, down_bias)
    gate: dict[str, Any] = {
        "activation": activation,
        "interleaved": interleaved,
        "limit": limit,
        "alpha": alpha,
        "shift": shift,
    }
    keep = may_need_gradient(x, weight, gate_up, down, gate_up_bias, down_bias)
    y, _ = ops.experts(*inputs, **gate, transpose_weight=transpose_weight, keep=keep)
    return y
