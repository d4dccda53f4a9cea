"""Attention, and the softmax in it."""

from __future__ import annotations

from typing import Any

from fusedops.checks import flag, optional_count, optional_number
from fusedops.functions.common import Refused, Tensor, integers_of, ops, ring_of_context, seed_of
from fusedops.functions.refusal import refuse


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *more: Refused,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    window: int | None = None,
    lengths: Tensor | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: Tensor | tuple[int, int] | None = None,
    seq_dim: int = -3,
    return_lse: bool = False,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    query_offset: Tensor | int | None = None,
    bias: Tensor | None = None,
    **others: Refused,
) -> Any:
    """softmax(scale · q kᵀ, masked) v, for each head of each sequence.

    The scores are computed tile by tile and never stored, in the backward as well, which computes them again: memory
    grows with the number of positions, not with its square. Query i stands beside key i + S - T: the last query beside
    the last key. `query_offset` replaces S - T. A query sees the keys that all of `causal`, `window`, `lengths`, `mask`
    and `bias` leave it; if they leave none, its result is zeros, with zero gradient.

    Slices of a packed tensor and transposed heads are read in place: nothing is copied. Keys at or behind `lengths` are
    never read. The other keys and values must be finite even where they are masked, since zero times infinity or NaN is
    NaN.

    Args:
        q: [..., T, H, D]: T queries of H heads with D features, such as [B, T, H, D]; with `seq_dim=-2` [..., H, T, D],
            such as [B, H, T, D]. float64, float32, float16 or bfloat16; D from 1 to 576.
        k: [..., S, Hk, D]: S keys, with q's leading dimensions, dtype and layout. Hk divides H: each key head is shared
            by H / Hk query heads that lie side by side.
        v: [..., S, Hk, Dv]: the values; Dv from 1 to 576.
        causal: keeps key j of query i where j ≤ i + S - T.
        scale: a number, used unrounded in the compute dtype; 1/√D if None.
        mask: bool, broadcastable to [..., H, T, S] in either layout; True keeps a key.
        window: keeps key j of query i only where j > i + S - T - window: with `causal`, the last `window` keys.
        lengths: int32 or int64, of q's leading dimensions, such as [B]: the number of keys that a sequence has, from 0
            to S. Those behind it are padding.
        softcap: c > 0 replaces each score s by c · tanh(s / c), before masking.
        dropout: the probability with which a probability is dropped, from 0 to below 1.
        seed: as in `dropout`, applied to the tensor of all probabilities, [..., H, T, S] in either layout.
            Unused if `dropout` is 0.
        seq_dim: the dimension that holds the positions, -3 or -2.
        return_lse: also returns the log-sum-exp of the scores, by which results over parts of the keys are merged.
        alibi: [H], q's dtype or float32: slopes m. Adds -m · |i + S - T - j| to the score of query i and key j, after
            `softcap`. It has no gradient.
        sinks: [H], q's dtype or float32: one more logit in the denominator of every row of a head, with a value of
            zero.
        query_offset: int32 or int64, of q's leading dimensions, such as [B], or one integer: the position of the first
            query among the keys, from 0 to S. It replaces S - T in `causal`, `window` and `alibi`. With `lengths`, a
            part of a prompt or the next tokens attend to a cache that is not full.
        bias: q's dtype or float32, broadcastable to [..., H, T, S] in either layout: added to the scores, after
            `softcap`. A key whose bias is -inf is masked. Do not mask with large negative numbers instead: the
            gradients of a row have a relative error of |lse| · 2⁻²⁴, from the rounding of its log-sum-exp.

    Returns:
        A tensor of q's dtype and layout, contiguous, with Dv features. 16-bit inputs are summed in float32; on a GPU
        the probabilities are rounded to 16 bits before the product with v. The bits of a sequence do not depend on
        what else is in the batch; with dropout, what is dropped follows from its place there.
        With `return_lse` a pair of it and the log-sum-exp [..., H, T], in either layout: the logarithm of the
        denominator of the softmax, whatever `dropout` drops. It is differentiable, float64 for float64, else float32.
        Where no key is visible it is the sink, or -inf without sinks.

    Gradient:
        With p the probabilities, d = dy vᵀ and ds = p · (d - Σ dy·y): dv = pᵀ dy, dq = scale · ds k and
        dk = scale · dsᵀ q; a soft cap makes ds · (1 - tanh²(s / c)) of ds. Dropout, drawn again, is applied to
        p in dv, and to d in ds. The gradient of the log-sum-exp is added to d. The gradient of a sink is the sum of
        -exp(sink - lse) · Σ dy·y over the rows of its head. That of a bias is the sum of ds, without the factor of a
        soft cap, over the dimensions that it lacks; it computes the scores once more, and stores none. The order of
        all sums follows from the shapes alone.
        Double backward and forward mode take the plain formula, and memory for all T × S scores.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX): an
            argument has the wrong shape or dtype, or a number is out of range. On a CPU also: a length or a query
            offset is not in [0, S]. A GPU cannot raise: there, such a length counts as 0 or S, and a sequence with such
            an offset sees no key. In PyTorch also: a call inside torch's context_parallel has arguments beside
            `causal`, `scale`, `window`, `softcap` and `seq_dim`.

    PyTorch:
        Under autocast all floating tensors are cast to its dtype first, unless they are float64. `scale`, `window`,
        `softcap` and `dropout` are constants of compiled code. Inside torch's context_parallel, which shards positions,
        the keys are those of all processes: `fusedops.torch.distributed.ring_attention`.

        >>> q, k, v = torch.tensor([[[0.0]], [[0.0]]]), torch.zeros(2, 1, 1), torch.tensor([[[1.0]], [[3.0]]])
        >>> fo.attention(q, k, v, causal=True).flatten()
        tensor([1., 2.])

    TensorFlow:
        >>> q, k, v = tf.zeros([2, 1, 1]), tf.zeros([2, 1, 1]), tf.constant([[[1.0]], [[3.0]]])
        >>> fo.attention(q, k, v, causal=True).numpy().ravel()
        array([1., 2.], dtype=float32)

    Source: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning", 2023.
    """
    if more or others:
        refuse("attention", more, others)
    with_lse = flag("attention", "return_lse", return_lse)
    ring = ring_of_context(
        "attention",
        mask=mask,
        lengths=lengths,
        dropout=dropout,
        return_lse=return_lse,
        alibi=alibi,
        sinks=sinks,
        query_offset=query_offset is not None,
        bias=bias,
    )
    if ring is not None:
        return ring(q, k, v, causal=causal, scale=scale, window=window, softcap=softcap, seq_dim=seq_dim)
    scales, windowed = optional_number("attention", "scale", scale), optional_count("attention", "window", window)
    seeds, rate = (None, 0.0) if dropout == 0 else (seed_of("attention", seed, q), dropout)
    options: dict[str, Any] = {
        "causal": causal,
        "scale": scales,
        "window": windowed,
        "softcap": softcap,
        "seq_dim": seq_dim,
        "dropout": rate,
    }
    offsets = integers_of("attention", "query_offset", query_offset, q)
    inputs = (q, k, v, mask, lengths, seeds, offsets, alibi, sinks, bias)
    if with_lse:
        return ops.attention_lse(*inputs, **options)
    y, _ = ops.attention(*inputs, **options)
    return y


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets_q: Tensor,
    offsets_k: Tensor,
    *more: Refused,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    **others: Refused,
) -> Any:
    """softmax(scale · q kᵀ, masked) v for sequences of different lengths, packed one behind the other without padding.

    Sequence b has the queries offsets_q[b] up to offsets_q[b + 1] and the keys offsets_k[b] up to offsets_k[b + 1], and
    sees no other keys. What holds for `attention` holds for each sequence: causality is aligned at its own end, and
    memory grows with the number of positions. A sequence has the bits that `attention` gives it alone; of up to 32
    queries of 16 bits on a GPU it has others, since `attention` computes those by kernels of their own.

    Args:
        q: [N, H, D]: the queries of all sequences. float64, float32, float16 or bfloat16; D from 1 to 576.
        k: [M, Hk, D]: the keys of all sequences, of q's dtype; Hk divides H.
        v: [M, Hk, Dv]: the values; Dv from 1 to 576.
        offsets_q: int32 [B + 1], ascending from 0 to N, for B sequences. A sequence may be empty.
        offsets_k: int32 [B + 1], ascending from 0 to M; the same tensor as offsets_q for self-attention.
        causal: keeps key j of query i of a sequence of S keys and T queries where j ≤ i + S - T.
        scale: a number, used unrounded in the compute dtype; 1/√D if None.
        window: keeps key j of query i only where j > i + S - T - window.
        softcap: c > 0 replaces each score s by c · tanh(s / c), before masking.
        return_lse: also returns the log-sum-exp of the scores.
        alibi, sinks: as in `attention`.

    Returns:
        [N, H, Dv] of q's dtype, computed as by `attention`; with `return_lse` a pair of it and the log-sum-exp [H, N].

    Gradient:
        That of `attention`. Double backward and forward mode take the plain formula, and memory for all N × M scores.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX): an
            argument has the wrong shape or dtype, or a number is out of range. On a CPU also: offsets do not ascend
            from 0 to the number of positions. A GPU cannot raise: there, each offset counts as the largest up to it,
            within [0, N] or [0, M]. A position then belongs to the first sequence that has it. Where no sequence is,
            results and gradients are zeros, and the log-sum-exp is -inf. In PyTorch also: the call is inside torch's
            context_parallel, which shards positions.

    PyTorch:
        Under autocast q, k and v are cast to its dtype first, unless they are float64.

        >>> values, offsets = torch.tensor([[[1.0]], [[3.0]], [[5.0]]]), torch.tensor([0, 2, 3], dtype=torch.int32)
        >>> fo.attention_varlen(torch.zeros(3, 1, 1), torch.zeros(3, 1, 1), values, offsets, offsets).flatten()
        tensor([2., 2., 5.])

    TensorFlow:
        >>> values, offsets = tf.constant([[[1.0]], [[3.0]], [[5.0]]]), tf.constant([0, 2, 3])
        >>> y = fo.attention_varlen(tf.zeros([3, 1, 1]), tf.zeros([3, 1, 1]), values, offsets, offsets)
        >>> y.numpy().ravel()
        array([2., 2., 5.], dtype=float32)

    Source: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning", 2023.
    """
    if more or others:
        refuse("attention_varlen", more, others)
    with_lse = flag("attention_varlen", "return_lse", return_lse)
    ring_of_context("attention_varlen", offsets_q=offsets_q)
    options: dict[str, Any] = {
        "causal": causal,
        "scale": optional_number("attention_varlen", "scale", scale),
        "window": optional_count("attention_varlen", "window", window),
        "softcap": softcap,
    }
    if with_lse:
        return ops.attention_varlen_lse(q, k, v, offsets_q, offsets_k, alibi, sinks, **options)
    y, _ = ops.attention_varlen(q, k, v, offsets_q, offsets_k, alibi, sinks, **options)
    return y


def softmax(
    x: Tensor,
    *more: Refused,
    scale: float = 1.0,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    **others: Refused,
) -> Tensor:
    """exp(scale·x + bias) / Σ exp(scale·x + bias), over the last dimension.

    Masked elements are ignored, even NaN and infinity: their probability and their gradient are zero. A row in which
    every element is masked is all zeros. Elements above the causal diagonal are not even read.

    Args:
        x: float64, float32, float16 or bfloat16, [..., columns].
        scale: a number, used unrounded in the compute dtype.
        mask: bool, of x's shape or broadcastable to it; True keeps an element.
        causal: keeps column j of row i where j ≤ i + columns - rows, on the last two dimensions, so that the last row
            sees all columns. x then needs two dimensions. An element must be kept by both the mask and causality.
        bias: x's dtype or float32, of x's shape or broadcastable to it; -inf masks an element.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. A row's bits do not
        depend on the other rows.

    Gradient:
        dx = scale · y · (dy - Σ dy·y), with the sum over the row. That of a bias is the sum of y · (dy - Σ dy·y) over
        the dimensions that it lacks, in an order that follows from the shapes alone.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the
            wrong shape or dtype, or `scale` is not finite.

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
    if more or others:
        refuse("softmax", more, others)
    return ops.softmax(x, mask, bias, scale=scale, causal=causal)
