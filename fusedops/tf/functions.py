"""The public functions of fusedops.tf; `make stubs` writes them, from fusedops/functions/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusedops.checks import optional_count, optional_number, renamed
from fusedops.expressions.function import Elementwise
from fusedops.functions.common import Activation, Approximation, Reduction, Scaling, dtype_name
from fusedops.tf import expressions as own
from fusedops.tf.naming import are_symbolic, call_symbolic, named
from fusedops.tf.operators import OPERATORS as ops
from fusedops.tf.randomness import seed_of
from fusedops.tf.recording import may_need_gradient
from fusedops.tf.sequences import check_whole_sequences
from fusedops.tf.tensors import Tensor, TensorLike, Variable

__all__ = [
    "accumulate_matmul",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "add_rms_norm_float8",
    "attention",
    "attention_varlen",
    "axpby",
    "bias_act",
    "bias_act_float8",
    "cross_entropy",
    "dropout",
    "dropout_add",
    "elementwise",
    "gated_act",
    "gated_act_float8",
    "gated_linear",
    "geglu",
    "layer_norm",
    "layer_norm_float8",
    "linear",
    "linear_cross_entropy",
    "matmul",
    "polynomial_activation",
    "reglu",
    "relu",
    "rms_norm",
    "rms_norm_float8",
    "rope",
    "scale",
    "softmax",
    "swiglu",
]


def accumulate_matmul(
    total: Variable, a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """total = total + a @ b, in place; each matrix may be transposed.

    This sums the gradient of a weight, dyᵀ @ x, over the parts of a batch: of 16-bit matrices in float32, never rounded
    to 16 bits. The K products of an element are summed before they are added to total.

    Args:
        total: [..., M, N], float64 if a is, else float32. In PyTorch a tensor, in TensorFlow a variable of its own or
            of Keras's. It is updated.
        a: [..., M, K], or [..., K, M] with `transpose_a`; float64, float32, float16 or bfloat16.
        b: [..., K, N], or [..., N, K] with `transpose_b`; of a's dtype. Its leading dimensions are a's, or it has none.
        transpose_a: whether a's last two dimensions are exchanged.
        transpose_b: whether b's last two dimensions are exchanged.

    Returns:
        Nothing. The order of the sums follows from sizes, layouts and alignment alone, as in `matmul`.

    Gradient:
        None. In PyTorch, neither total nor the matrices may require one, unless the call is under torch.no_grad() or in
        a backward.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype. total is then as before.
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
    ops.accumulate_matmul(total, a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def add(x: TensorLike, y: TensorLike, *, name: str | None = None) -> Tensor:
    """x + y.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        y: x's shape and dtype; there is no broadcasting.

    Returns:
        A tensor of x's shape and dtype.

    Gradient:
        Of x and of y, the upstream gradient.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        >>> fo.add(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        tensor([4., 6.])

    TensorFlow:
        >>> fo.add(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])).numpy()
        array([4., 6.], dtype=float32)
    """
    if name is not None:
        return named(name, add, x, y)
    try:
        return ops.add(x, y)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, y):
            raise
    return call_symbolic(add, None, x, y)


def add_layer_norm(
    x: TensorLike,
    residual: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-05,
    dropout: float = 0.0,
    seed: TensorLike | tuple[int, int] | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(s), s) with s = x + residual, or s = dropout(x) + residual, in one pass.

    s is rounded to x's dtype before it is normalized, as if the steps were separate operators.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        residual: x's shape and dtype.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None adds nothing.
        eps: at least 0; added to the variance, in the compute dtype.
        dropout: the probability with which an element of x is dropped, from 0 to below 1.
        seed: as in `dropout`, which drops the same with it. Unused if `dropout` is 0.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Gradient:
        x and residual have the same gradient: that of `layer_norm` at s, plus the gradient of the second result. With
        dropout, x has `dropout` of it, with the same seed.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.

    PyTorch:
        `eps` and `dropout` are constants of compiled code: torch.compile compiles again for each value.

        >>> fo.add_layer_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        (tensor([[-1.0000,  1.0000]]), tensor([[3., 4.]]))

    TensorFlow:
        >>> y, s = fo.add_layer_norm(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[-1.,  1.]], dtype=float32), array([[3., 4.]], dtype=float32))

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if name is not None:
        return named(name, add_layer_norm, x, residual, weight, bias, eps=eps, dropout=dropout, seed=seed)
    try:
        if dropout == 0:
            y, s, _, _ = ops.add_layer_norm(x, residual, weight, bias, eps=eps)
            return y, s
        seeds = seed_of("add_layer_norm", seed, x)
        try:
            y, s, _, _ = ops.dropout_add_layer_norm(x, residual, seeds, weight, bias, eps=eps, rate=dropout)
        except Exception as error:
            raise renamed(error, "dropout_add_layer_norm", "add_layer_norm", rate="dropout") from None
        return y, s
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, residual, weight, bias, eps, dropout, seed):
            raise
    return call_symbolic(add_layer_norm, None, x, residual, weight, bias, eps=eps, dropout=dropout, seed=seed)


def add_rms_norm(
    x: TensorLike,
    residual: TensorLike,
    weight: TensorLike | None = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    dropout: float = 0.0,
    seed: TensorLike | tuple[int, int] | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) with s = x + residual, or s = dropout(x) + residual, in one pass.

    s is rounded to x's dtype before it is normalized, as if the steps were separate operators.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        residual: x's shape and dtype.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        eps: at least 0; added to the mean of squares, in the compute dtype.
        weight_offset: added to the weight in the compute dtype; 1 for weights that are stored as the difference from 1,
            as in Gemma. Unused without a weight.
        dropout: the probability with which an element of x is dropped, from 0 to below 1.
        seed: as in `dropout`, which drops the same with it. Unused if `dropout` is 0.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Gradient:
        x and residual have the same gradient: that of `rms_norm` at s, plus the gradient of the second result. With
        dropout, x has `dropout` of it, with the same seed.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.

    PyTorch:
        `eps` and `dropout` are constants of compiled code: torch.compile compiles again for each value.

        >>> fo.add_rms_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))

    TensorFlow:
        >>> y, s = fo.add_rms_norm(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[0.8485, 1.1314]], dtype=float32), array([[3., 4.]], dtype=float32))

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if name is not None:
        return named(
            name, add_rms_norm, x, residual, weight, eps=eps, weight_offset=weight_offset, dropout=dropout, seed=seed
        )
    try:
        if dropout == 0:
            y, s, _ = ops.add_rms_norm(x, residual, weight, eps=eps, weight_offset=weight_offset)
            return y, s
        seeds = seed_of("add_rms_norm", seed, x)
        try:
            y, s, _ = ops.dropout_add_rms_norm(
                x, residual, seeds, weight, eps=eps, weight_offset=weight_offset, rate=dropout
            )
        except Exception as error:
            raise renamed(error, "dropout_add_rms_norm", "add_rms_norm", rate="dropout") from None
        return y, s
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, residual, weight, eps, weight_offset, dropout, seed):
            raise
    return call_symbolic(
        add_rms_norm, None, x, residual, weight, eps=eps, weight_offset=weight_offset, dropout=dropout, seed=seed
    )


def add_rms_norm_float8(
    x: TensorLike,
    residual: TensorLike,
    weight: TensorLike | None = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    scale: TensorLike | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, scale, s) with s = x + residual and rms_norm(s) ≈ y · scale, y in 8 bits, as by `bias_act_float8`.

    Args:
        x: as in `add_rms_norm`.
        residual: as in `add_rms_norm`.
        weight: as in `rms_norm`.
        eps: as in `rms_norm`.
        weight_offset: as in `rms_norm`.
        scale: as in `bias_act_float8`.
        scaling: as in `bias_act_float8`.
        dtype: as in `bias_act_float8`.

    Returns:
        y, of x's shape, its scale, and the sum for the next residual connection, in x's dtype.

    Gradient:
        None, as in `bias_act_float8`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.
        RuntimeError (PyTorch), LookupError (TensorFlow): an argument requires a gradient.
        ValueError: `scaling` or `dtype` is not one of those of `bias_act_float8`.

    PyTorch:
        >>> y, scale, s = fo.add_rms_norm_float8(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0]]))
        >>> y.float() * scale, s
        (tensor([[0.6325, 1.2649]]), tensor([[1., 2.]]))

    TensorFlow:
        >>> y, scale, s = fo.add_rms_norm_float8(tf.constant([[0.0, 1.0]]), tf.constant([[1.0, 1.0]]))
        >>> (tf.cast(y, tf.float32) * scale).numpy().round(4), s.numpy()
        (array([[0.6325, 1.2649]], dtype=float32), array([[1., 2.]], dtype=float32))

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if name is not None:
        return named(
            name,
            add_rms_norm_float8,
            x,
            residual,
            weight,
            eps=eps,
            weight_offset=weight_offset,
            scale=scale,
            scaling=scaling,
            dtype=dtype,
        )
    try:
        float8 = dtype_name(dtype)
        y, scales, s = ops.add_rms_norm_float8(
            x, residual, weight, scale, eps=eps, weight_offset=weight_offset, scaling=scaling, dtype=float8
        )
        return y, scales if scale is None else scale, s
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, residual, weight, eps, weight_offset, scale, scaling, dtype):
            raise
    return call_symbolic(
        add_rms_norm_float8,
        None,
        x,
        residual,
        weight,
        eps=eps,
        weight_offset=weight_offset,
        scale=scale,
        scaling=scaling,
        dtype=dtype,
    )


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: TensorLike | None = None,
    window: int | None = None,
    lengths: TensorLike | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: TensorLike | tuple[int, int] | None = None,
    seq_dim: int = -3,
    name: str | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ, masked) v, for each head of each sequence.

    The scores are computed tile by tile and never stored, in the backward as well, which computes them again: memory
    grows with the number of positions, not with its square. Query i stands beside key i + S - T: the last query beside
    the last key. A query sees the keys that all of `causal`, `window`, `lengths` and `mask` leave it; if they leave
    none, its result is zeros, with zero gradient.

    Slices of a packed tensor and transposed heads are read in place: nothing is copied. Keys at or behind `lengths` are
    never read. The other keys and values must be finite even where they are masked, since zero times infinity or NaN is
    NaN.

    Args:
        q: [..., T, H, D]: T queries of H heads with D features, such as [B, T, H, D]; with `seq_dim=-2` [..., H, T, D],
            such as [B, H, T, D]. float64, float32, float16 or bfloat16; D from 1 to 256.
        k: [..., S, Hk, D]: S keys, with q's leading dimensions, dtype and layout. Hk divides H: each key head is shared
            by H / Hk query heads that lie side by side.
        v: [..., S, Hk, Dv]: the values; Dv from 1 to 256.
        causal: keeps key j of query i where j ≤ i + S - T.
        scale: a number, used unrounded in the compute dtype; 1/√D if None.
        mask: bool, broadcastable to [..., H, T, S] in either layout; True keeps a key.
        window: keeps key j of query i only where j > i + S - T - window: with `causal`, the last `window` keys.
        lengths: int32 or int64, of q's leading dimensions, such as [B]: the number of keys that a sequence has, from 0
            to S. Those behind it are padding.
        softcap: c > 0 replaces each score s by c · tanh(s / c), before masking.
        dropout: the probability with which a probability is dropped, from 0 to below 1.
        seed: as in `dropout`, which drops the same of a tensor of all probabilities, [..., H, T, S] in either layout.
            Unused if `dropout` is 0.
        seq_dim: the dimension that holds the positions, -3 or -2.

    Returns:
        A tensor of q's dtype and layout, contiguous, with Dv features. 16-bit inputs are summed in float32; on a GPU
        the probabilities are rounded to 16 bits before the product with v. The bits of a sequence do not depend on
        what else is in the batch; with dropout, what is dropped follows from its place there.

    Gradient:
        With p the probabilities, d = dy vᵀ and ds = p · (d - Σ dy·y): dv = pᵀ dy, dq = scale · ds k and
        dk = scale · dsᵀ q; a soft cap makes ds · (1 - tanh²(s / c)) of ds. Dropout, drawn again, is applied to
        p in dv, and to d in ds. The order of all sums follows from the shapes alone.
        Double backward and forward mode take the plain formula, and memory for all T × S scores.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range. On a CPU also: a length is not in [0, S]. A GPU cannot raise: there, it
            counts as 0 or S. In PyTorch also: the call is inside torch's context_parallel, which shards sequences.

    PyTorch:
        Under autocast q, k and v are cast to its dtype first, unless they are float64. `scale`, `window`, `softcap`
        and `dropout` are constants of compiled code.

        >>> q, k, v = torch.tensor([[[0.0]], [[0.0]]]), torch.zeros(2, 1, 1), torch.tensor([[[1.0]], [[3.0]]])
        >>> fo.attention(q, k, v, causal=True).flatten()
        tensor([1., 2.])

    TensorFlow:
        >>> q, k, v = tf.zeros([2, 1, 1]), tf.zeros([2, 1, 1]), tf.constant([[[1.0]], [[3.0]]])
        >>> fo.attention(q, k, v, causal=True).numpy().ravel()
        array([1., 2.], dtype=float32)

    Source: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning", 2023.
    """
    if name is not None:
        return named(
            name,
            attention,
            q,
            k,
            v,
            causal=causal,
            scale=scale,
            mask=mask,
            window=window,
            lengths=lengths,
            softcap=softcap,
            dropout=dropout,
            seed=seed,
            seq_dim=seq_dim,
        )
    try:
        check_whole_sequences("attention")
        scales, windowed = optional_number("attention", "scale", scale), optional_count("attention", "window", window)
        if dropout == 0:
            y, _ = ops.attention(
                q, k, v, mask, lengths, causal=causal, scale=scales, window=windowed, softcap=softcap, seq_dim=seq_dim
            )
            return y
        seeds = seed_of("attention", seed, q)
        try:
            y, _ = ops.dropout_attention(
                q,
                k,
                v,
                seeds,
                mask,
                lengths,
                causal=causal,
                scale=scales,
                window=windowed,
                softcap=softcap,
                seq_dim=seq_dim,
                rate=dropout,
            )
        except Exception as error:
            raise renamed(error, "dropout_attention", "attention", rate="dropout") from None
        return y
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(q, k, v, causal, scale, mask, window, lengths, softcap, dropout, seed, seq_dim):
            raise
    return call_symbolic(
        attention,
        None,
        q,
        k,
        v,
        causal=causal,
        scale=scale,
        mask=mask,
        window=window,
        lengths=lengths,
        softcap=softcap,
        dropout=dropout,
        seed=seed,
        seq_dim=seq_dim,
    )


def attention_varlen(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    offsets_q: TensorLike,
    offsets_k: TensorLike,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ, masked) v for sequences of different lengths, packed one behind the other without padding.

    Sequence b has the queries offsets_q[b] up to offsets_q[b + 1] and the keys offsets_k[b] up to offsets_k[b + 1], and
    sees no other keys. What holds for `attention` holds for each sequence: causality is aligned at its own end, and
    memory grows with the number of positions. A sequence has the bits that `attention` gives it alone; of up to 32
    queries of 16 bits on a GPU it has others, since `attention` computes those by kernels of their own.

    Args:
        q: [N, H, D]: the queries of all sequences. float64, float32, float16 or bfloat16; D from 1 to 256.
        k: [M, Hk, D]: the keys of all sequences, of q's dtype; Hk divides H.
        v: [M, Hk, Dv]: the values; Dv from 1 to 256.
        offsets_q: int32 [B + 1], ascending from 0 to N, for B sequences. A sequence may be empty.
        offsets_k: int32 [B + 1], ascending from 0 to M; the same tensor as offsets_q for self-attention.
        causal: keeps key j of query i of a sequence of S keys and T queries where j ≤ i + S - T.
        scale: a number, used unrounded in the compute dtype; 1/√D if None.
        window: keeps key j of query i only where j > i + S - T - window.
        softcap: c > 0 replaces each score s by c · tanh(s / c), before masking.

    Returns:
        [N, H, Dv] of q's dtype, computed as by `attention`.

    Gradient:
        That of `attention`. Double backward and forward mode take the plain formula, and memory for all N × M scores.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range. On a CPU also: offsets do not ascend from 0 to the number of positions.
            A GPU cannot raise: there, each offset counts as the largest up to it, within [0, N] or [0, M]. A position
            then belongs to the first sequence that has it, and results and gradients are zeros where no sequence is.
            In PyTorch also: the call is inside torch's context_parallel, which shards sequences.

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
    if name is not None:
        return named(
            name,
            attention_varlen,
            q,
            k,
            v,
            offsets_q,
            offsets_k,
            causal=causal,
            scale=scale,
            window=window,
            softcap=softcap,
        )
    try:
        check_whole_sequences("attention_varlen")
        scales = optional_number("attention_varlen", "scale", scale)
        windowed = optional_count("attention_varlen", "window", window)
        y, _ = ops.attention_varlen(
            q, k, v, offsets_q, offsets_k, causal=causal, scale=scales, window=windowed, softcap=softcap
        )
        return y
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(q, k, v, offsets_q, offsets_k, causal, scale, window, softcap):
            raise
    return call_symbolic(
        attention_varlen,
        None,
        q,
        k,
        v,
        offsets_q,
        offsets_k,
        causal=causal,
        scale=scale,
        window=window,
        softcap=softcap,
    )


def axpby(a: float | TensorLike, x: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a·x + b, in one pass.

    Args:
        a: a number, used unrounded in the compute dtype, or a tensor with one element, of x's dtype or float32.
        x: float64, float32, float16 or bfloat16, any shape.
        b: x's shape and dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        da = Σ dy·x, dx = a·dy and db = dy. One pass over dy and x computes da and dx.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        Under torch.compile a number that varies does not cause a recompilation.

        >>> fo.axpby(0.5, torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0]))
        tensor([2., 3.])

    TensorFlow:
        >>> fo.axpby(0.5, tf.constant([2.0, 4.0]), tf.constant([1.0, 1.0])).numpy()
        array([2., 3.], dtype=float32)

    Source: BLAS's axpy, with a second vector instead of an update in place.
    """
    if name is not None:
        return named(name, axpby, a, x, b)
    try:
        return ops.axpby(a, x, b)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(a, x, b):
            raise
    return call_symbolic(axpby, None, a, x, b)


def bias_act(
    x: TensorLike, bias: TensorLike | None = None, activation: Activation = "gelu", *, name: str | None = None
) -> Tensor:
    """act(x + bias).

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        bias: [D] for x of shape [..., D]; of x's dtype, or float32 beside a 16-bit x.
        activation: `identity`, `relu`, `gelu` (exact, by erf), `gelu_tanh` (its approximation by tanh), `silu`,
            `sigmoid` or `tanh`.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. Infinities
        are no special case: `gelu`, `gelu_tanh` and `silu` of -inf are -inf · 0 = NaN.

    Gradient:
        dx = dy · act'(x + bias); dbias is the sum of dx over all dimensions but the last.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `activation` is not one of those above.

    PyTorch:
        >>> fo.bias_act(torch.tensor([[-1.0, 1.0]]), torch.tensor([1.0, 1.0]), "silu")
        tensor([[0.0000, 1.7616]])

    TensorFlow:
        >>> fo.bias_act(tf.constant([[-1.0, 1.0]]), tf.constant([1.0, 1.0]), "silu").numpy().round(4)
        array([[0.    , 1.7616]], dtype=float32)

    Sources: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016; Elfwing, Uchibe and Doya,
        "Sigmoid-weighted linear units for neural network function approximation in reinforcement learning", 2017.
    """
    if name is not None:
        return named(name, bias_act, x, bias, activation)
    try:
        return ops.bias_act(x, bias, activation=activation)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, bias, activation):
            raise
    return call_symbolic(bias_act, None, x, bias, activation)


def bias_act_float8(
    x: TensorLike,
    bias: TensorLike | None = None,
    activation: Activation = "gelu",
    *,
    scale: TensorLike | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with act(x + bias) ≈ y · scale, y in 8 bits: for products in float8.

    With `identity` and no bias it rounds x as it is.

    A value that is divided by its scale rounds once, to nearest even, and becomes the largest finite number (448 for
    float8_e4m3fn, 57344 for float8_e5m2) if it is beyond: infinities, too. NaN stays NaN, and does not count for the
    largest value.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x.
        activation: as in `bias_act`.
        scale: what values are divided by, of the shape below for `scaling`; float32, or float64 for a float64 x. None
            computes it: the largest absolute value over the largest finite number, and at least the smallest normal
            number of its dtype, so that zeros have a scale, too. With an infinity among the values it is infinite, and
            y 0, or NaN where the value is infinite or NaN: a given scale avoids that.
        scaling: what has a scale of its own: `tensor`, everything, [] (if given, any shape of one element); `row`,
            [..., 1]; `block`, 128 neighbouring elements of a row, [..., ceil(columns / 128)]. A row's scales are those
            of `torch._scaled_mm` and of blockwise kernels; `block` has them row by row.
        dtype: `float8_e4m3fn` or `float8_e5m2`, by name or as a dtype of the framework.

    Returns:
        y, of x's shape, and its scale: the given one, or the one that was computed. All is computed in float32, or
        float64. For rows and blocks one pass reads x and writes both. The scale of a whole tensor is known only when
        all of it was read, so that to compute it takes a second pass; a given one, such as an earlier one, takes one.

    Gradient:
        None: this is for inference. PyTorch refuses an argument that requires a gradient, unless under
        torch.no_grad(), and TensorFlow one that a tape watches, unless it is given as tf.stop_gradient(x).

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        RuntimeError (PyTorch), LookupError (TensorFlow): an argument requires a gradient.
        ValueError: `activation`, `scaling` or `dtype` is not one of those above.

    PyTorch:
        >>> y, scale = fo.bias_act_float8(torch.tensor([[1.0, -3.5, 7.0]]), activation="identity")
        >>> y.float(), scale
        (tensor([[  64., -224.,  448.]]), tensor([[0.0156]]))

    TensorFlow:
        >>> y, scale = fo.bias_act_float8(tf.constant([[1.0, -3.5, 7.0]]), activation="identity")
        >>> tf.cast(y, tf.float32).numpy(), scale.numpy()
        (array([[  64., -224.,  448.]], dtype=float32), array([[0.015625]], dtype=float32))

    Source: Micikevicius et al., "FP8 formats for deep learning", 2022.
    """
    if name is not None:
        return named(name, bias_act_float8, x, bias, activation, scale=scale, scaling=scaling, dtype=dtype)
    try:
        name = dtype_name(dtype)
        y, scales = ops.bias_act_float8(x, bias, scale, activation=activation, scaling=scaling, dtype=name)
        return y, scales if scale is None else scale
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, bias, activation, scale, scaling, dtype):
            raise
    return call_symbolic(bias_act_float8, None, x, bias, activation, scale=scale, scaling=scaling, dtype=dtype)


def cross_entropy(
    logits: TensorLike,
    labels: TensorLike,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Tensor:
    """-log softmax(logits)[label], over the last dimension.

    The logits are read once, and no probabilities are stored except for second derivatives. With label smoothing s, the
    loss of a row is (1 - s) · loss(label) + s · (mean of the loss over all classes).

    Args:
        logits: float64, float32, float16 or bfloat16, [..., classes].
        labels: int32 or int64, [...]: a class in [0, classes) for each row, or ignore_index.
        ignore_index: rows with this label have zero loss and zero gradient, and do not count in the mean.
        label_smoothing: in [0, 1].
        reduction: "mean" over the rows that are not ignored, NaN if all are; "sum"; or "none", one loss per row.

    Returns:
        The loss, in float64 for float64 logits and in float32 for all others: of the labels' shape for "none",
        otherwise a scalar.

    Gradient:
        softmax(logits) - onehot(label) for each row, times the upstream gradient, and divided by the number of rows
        that count for "mean"; with smoothing, the target is (1 - s)·onehot + s / classes. It has the logits' dtype. It
        can be differentiated again with respect to the upstream gradient only. On a GPU, in PyTorch, rows of 16-bit
        gradients begin at multiples of 16 bytes, as the products that read them need.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        RuntimeError, InvalidArgumentError, ValueError: `label_smoothing` is outside [0, 1]; on a CPU also: a label is
            neither a class nor ignore_index. A GPU cannot raise: there, such a label makes its loss and its gradient
            NaN.
        ValueError: `reduction` is not one of those above.

    PyTorch:
        >>> fo.cross_entropy(torch.tensor([[2.0, 1.0], [0.0, 0.0]]), torch.tensor([0, -100]))
        tensor(0.3133)

    TensorFlow:
        >>> loss = fo.cross_entropy(tf.constant([[2.0, 1.0], [0.0, 0.0]]), tf.constant([0, -100]))
        >>> print(loss.numpy().round(4))
        0.3133

    Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, for label smoothing.
    """
    if name is not None:
        return named(
            name,
            cross_entropy,
            logits,
            labels,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )
    try:
        loss, _, _ = ops.cross_entropy(
            logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
        )
        return loss
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(logits, labels, ignore_index, label_smoothing, reduction):
            raise
    return call_symbolic(
        cross_entropy,
        None,
        logits,
        labels,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def dropout(
    x: TensorLike, rate: float, seed: TensorLike | tuple[int, int] | None = None, *, name: str | None = None
) -> Tensor:
    """x / (1 − rate) where an element is kept, else 0, also of NaN and infinity.

    Which elements are kept follows from the seed, the rate and an element's position in x, counted row by row: the same
    in both frameworks, on CPU and GPU, for any strides and dtype. No mask is stored: the backward draws it again.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        rate: the probability with which an element is dropped, from 0 to below 1.
        seed: int64 [2], a key and an offset, or a pair of integers. Calls with the same seed drop the same positions;
            those with the same key and another offset, such as the number of a step, have nothing to do with each
            other. None: drawn by the framework's own generator.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = dropout(dy) with the same seed.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or the rate is out of range.

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
    if name is not None:
        return named(name, dropout, x, rate, seed)
    try:
        return ops.dropout(x, seed_of("dropout", seed, x), rate=rate)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, rate, seed):
            raise
    return call_symbolic(dropout, None, x, rate, seed)


def dropout_add(
    x: TensorLike,
    residual: TensorLike,
    rate: float,
    seed: TensorLike | tuple[int, int] | None = None,
    *,
    name: str | None = None,
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

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or the rate is out of range.

    PyTorch:
        What `dropout` says of seeds and rates.

        >>> fo.dropout_add(torch.ones(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5, seed=(5, 0))
        tensor([3., 2., 5., 6.])

    TensorFlow:
        >>> fo.dropout_add(tf.ones(4), tf.constant([1.0, 2.0, 3.0, 4.0]), 0.5, seed=(5, 0)).numpy()
        array([3., 2., 5., 6.], dtype=float32)
    """
    if name is not None:
        return named(name, dropout_add, x, residual, rate, seed)
    try:
        return ops.dropout_add(x, residual, seed_of("dropout_add", seed, x), rate=rate)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, residual, rate, seed):
            raise
    return call_symbolic(dropout_add, None, x, residual, rate, seed)


def elementwise(
    expression: str, *, inputs: Sequence[str] | None = None, name: str | None = None
) -> Elementwise[TensorLike, Tensor]:
    """A function of tensors from an expression: one kernel forward, one backward.

    Statements are separated by `;` or line breaks: `variable = value`, and last a value, or `return a, b` for several.
    A value is made of `+ - * / **`, one comparison (1 where it holds, else 0), and functions:

    - of each element: abs, cos, erf, exp, expm1, floor, gelu, gelu_tanh, log, log1p, relu, rsqrt, sigmoid, sign, silu,
      sin, softplus, sqrt, tanh, max(a, b), min(a, b), where(condition, a, b)
    - over the last dimension, which stays with size 1: sum, mean, max and min, of one argument

    and of numbers, the constants e, inf, nan and pi, and inputs, which are all other names. The inputs of a call
    broadcast as NumPy's do.

    The kernel is generated. On a GPU it is compiled when it is first called, by NVRTC, and kept on disk for later
    processes, in $FUSEDOPS_CACHE_DIR or ~/.cache/fusedops. On a CPU it is interpreted, block by block.

    Args:
        expression: the text, at most 10 000 characters, 500 operations and four results.
        inputs: the names of the inputs, in the order in which the function takes them; at most eight. By default in the
            order in which they first appear.
        name: of the function, in error messages and graphs: the operator is `<name>_<digits>`, of which the digits
            follow from the expression.

    Returns:
        A function that takes the inputs by position or by name: tensors, or numbers for some of them. Floating tensors
        have one dtype, or float32 beside one dtype of 16 bits, in any order. Tensors of bool and of integers may stand
        beside these; a bool counts as 0 or 1. The result has the 16-bit dtype if a tensor has one, else that of the
        floating tensors, and float32 beside numbers alone. It has the shape to which all inputs broadcast, also those
        on which no value depends; one that is made of reductions and numbers alone has a last dimension of size 1.
        Reductions, too, are over the rows of that shape; of no elements, sum is 0, mean NaN, max -inf and min inf. The
        function's `source` is the kernel in C++, its `derivative` an expression.

    Gradient:
        The derivative of the expression, made symbolically, to any order. Gradients of inputs that were broadcast are
        sums in a fixed order. At ties, max and min of two share the gradient; those of a row share it among all. A row
        whose max or min is NaN has gradient NaN. abs, relu, sign and floor have slope 0 at a jump or kink. `where`
        selects gradients: the branch that is not taken has none, even if its slope is infinite or NaN, nor has the
        condition. Numbers, and tensors of bool or integers, have no gradient.

    Raises:
        ValueError: the expression is not one; the message shows the place. A name is not allowed.
        TypeError: the expression or a name is not a string. In a call: too many or too few inputs, an unknown name, or
            an input that is neither a tensor nor a number.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): in a call: the inputs do not broadcast,
            or have the wrong dtype.

    PyTorch:
        >>> gate = fo.elementwise("silu(g) * u + scale * b", name="gate")
        >>> gate.inputs
        ('g', 'u', 'scale', 'b')
        >>> gate(torch.zeros(2, 3), torch.ones(2, 3), 0.5, torch.tensor([2.0, 4.0, 6.0]))
        tensor([[1., 2., 3.],
                [1., 2., 3.]])
        >>> print(fo.elementwise("x * w + 1").derivative)
        dx = sum_to(dy * w, x)
        dw = sum_to(dy * x, w)
        return dx, dw

    TensorFlow:
        >>> gate = fo.elementwise("silu(g) * u + scale * b", name="gate")
        >>> gate(tf.zeros([2, 3]), tf.ones([2, 3]), 0.5, tf.constant([2.0, 4.0, 6.0])).numpy()
        array([[1., 2., 3.],
               [1., 2., 3.]], dtype=float32)

    Source: Griewank and Walther, "Evaluating derivatives", 2008, for the derivative.
    """
    return own.elementwise(expression, inputs, name)


def gated_act(
    gate: TensorLike, up: TensorLike | None = None, activation: Activation = "silu", *, name: str | None = None
) -> Tensor:
    """act(gate) · up.

    Rows may be strided, such as the halves of a larger tensor: they are read in place.

    Args:
        gate: float64, float32, float16 or bfloat16, any shape. Without `up` it is packed, [..., 2D]: the first half of
            the last dimension is the gate, the second half is `up`.
        up: gate's shape and dtype.
        activation: as in `bias_act`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype. 16-bit inputs are computed in float32
        and rounded once.

    Gradient:
        dgate = dy · up · act'(gate) and dup = dy · act(gate). The gradient of a packed gate is packed.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        >>> fo.gated_act(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), activation="relu")
        tensor([[3., 8.]])

    TensorFlow:
        >>> fo.gated_act(tf.constant([[1.0, 2.0, 3.0, 4.0]]), activation="relu").numpy().round(4)
        array([[3., 8.]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if name is not None:
        return named(name, gated_act, gate, up, activation)
    try:
        return ops.gated_act(gate, up, activation=activation)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(gate, up, activation):
            raise
    return call_symbolic(gated_act, None, gate, up, activation)


def gated_act_float8(
    gate: TensorLike,
    up: TensorLike | None = None,
    activation: Activation = "silu",
    *,
    scale: TensorLike | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with act(gate) · up ≈ y · scale, y in 8 bits, rounded and scaled as by `bias_act_float8`.

    Args:
        gate: as in `gated_act`, with at least one dimension.
        up: as in `gated_act`.
        activation: as in `bias_act`.
        scale: as in `bias_act_float8`.
        scaling: as in `bias_act_float8`.
        dtype: as in `bias_act_float8`.

    Returns:
        y, of gate's shape, or [..., D] if it is packed, and its scale.

    Gradient:
        None, as in `bias_act_float8`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        RuntimeError (PyTorch), LookupError (TensorFlow): an argument requires a gradient.
        ValueError: `activation`, `scaling` or `dtype` is not one of those of `bias_act_float8`.

    PyTorch:
        >>> y, scale = fo.gated_act_float8(torch.tensor([[1.0, 2.0, 3.5, 3.5]]), activation="relu")
        >>> y.float() * scale
        tensor([[3.5000, 7.0000]])

    TensorFlow:
        >>> y, scale = fo.gated_act_float8(tf.constant([[1.0, 2.0, 3.5, 3.5]]), activation="relu")
        >>> (tf.cast(y, tf.float32) * scale).numpy()
        array([[3.5, 7. ]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if name is not None:
        return named(name, gated_act_float8, gate, up, activation, scale=scale, scaling=scaling, dtype=dtype)
    try:
        name = dtype_name(dtype)
        y, scales = ops.gated_act_float8(gate, up, scale, activation=activation, scaling=scaling, dtype=name)
        return y, scales if scale is None else scale
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(gate, up, activation, scale, scaling, dtype):
            raise
    return call_symbolic(gated_act_float8, None, gate, up, activation, scale=scale, scaling=scaling, dtype=dtype)


def gated_linear(
    x: TensorLike,
    gate_weight: TensorLike,
    up_weight: TensorLike,
    gate_bias: TensorLike | None = None,
    up_bias: TensorLike | None = None,
    activation: Activation = "silu",
    *,
    transpose_weight: bool = True,
    name: str | None = None,
) -> Tensor:
    """act(x Wgᵀ + bg) · (x Wuᵀ + bu): both products of a gated feed-forward layer and its gate.

    On a GPU of compute capability 9.0, with 16 bits, both products are one kernel, which writes the result alone if no
    gradient is wanted; 64 must divide `out`. The weights may be the halves of a packed one: they are read in place.
    Elsewhere they are two products and `gated_act`.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16.
        gate_weight: [out, in], or [in, out] if `transpose_weight` is false; of x's dtype.
        up_weight: gate_weight's shape and dtype.
        gate_bias: [out], of x's dtype.
        up_bias: likewise.
        activation: as in `bias_act`.
        transpose_weight: as in `linear`.

    Returns:
        [..., out], of x's dtype. 16-bit inputs are summed in float32 over all of `in`. Where the operator is computed
        in parts, both factors are rounded to x's dtype before they are multiplied; in the one kernel they are not.

    Gradient:
        With the factors g and u before the activation: dg = dy · u · act'(g) and du = dy · act(g), rounded to x's
        dtype; dx = dg Wg + du Wu, dWg = dgᵀ x, dWu = duᵀ x, and the biases' gradients are the sums of dg and du over
        all rows. g and u are saved for the backward, rounded, only if a gradient is wanted when `gated_linear` is
        called; otherwise the backward computes them again, with the same bits.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        Under autocast all inputs are cast to its dtype first, unless they are float64.

        >>> gate_weight, up_weight = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0]])
        >>> fo.gated_linear(torch.tensor([[1.0, 2.0]]), gate_weight, up_weight, activation="relu")
        tensor([[33.]])

    TensorFlow:
        >>> gate_weight, up_weight = tf.constant([[3.0, 4.0]]), tf.constant([[1.0, 1.0]])
        >>> fo.gated_linear(tf.constant([[1.0, 2.0]]), gate_weight, up_weight, activation="relu").numpy()
        array([[33.]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if name is not None:
        return named(
            name,
            gated_linear,
            x,
            gate_weight,
            up_weight,
            gate_bias,
            up_bias,
            activation,
            transpose_weight=transpose_weight,
        )
    try:
        keep = may_need_gradient(x, gate_weight, up_weight, gate_bias, up_bias)
        y, _, _ = ops.gated_linear(
            x,
            gate_weight,
            up_weight,
            gate_bias,
            up_bias,
            activation=activation,
            transpose_weight=transpose_weight,
            keep=keep,
        )
        return y
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, gate_weight, up_weight, gate_bias, up_bias, activation, transpose_weight):
            raise
    return call_symbolic(
        gated_linear, None, x, gate_weight, up_weight, gate_bias, up_bias, activation, transpose_weight=transpose_weight
    )


def geglu(
    gate: TensorLike, up: TensorLike | None = None, *, approximate: Approximation = "none", name: str | None = None
) -> Tensor:
    """gelu(gate) · up: `gated_act` with `gelu` or `gelu_tanh`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.
        approximate: "none" for `gelu`, "tanh" for `gelu_tanh`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Gradient:
        As in `gated_act`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `approximate` is neither of the two.

    PyTorch:
        >>> fo.geglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.5240, 7.8180]])

    TensorFlow:
        >>> fo.geglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[2.524, 7.818]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if name is not None:
        return named(name, geglu, gate, up, approximate=approximate)
    try:
        if approximate not in ("none", "tanh"):
            raise ValueError(f"fusedops.geglu: approximate must be 'none' or 'tanh'; got {approximate!r}")
        try:
            return ops.gated_act(gate, up, activation="gelu_tanh" if approximate == "tanh" else "gelu")
        except Exception as error:
            raise renamed(error, "gated_act", "geglu") from None
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(gate, up, approximate):
            raise
    return call_symbolic(geglu, None, gate, up, approximate=approximate)


def layer_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-05,
    name: str | None = None,
) -> Tensor:
    """(x − mean(x)) · rsqrt(var(x) + eps) · weight + bias, over the last dimension.

    The variance is the biased one. It is computed from the deviations from the mean, so that a large mean causes no
    cancellation. A row's result does not depend on the other rows.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None adds nothing.
        eps: at least 0; added to the variance, in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Gradient:
        With r = rsqrt(var(x) + eps), n = (x − mean(x))·r and g = dy·weight: dx = r·(g − mean(g) − n·mean(g·n)); dweight
        is the sum of dy·n over the rows, dbias that of dy. One pass computes all three.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.

    PyTorch:
        `eps` is a constant of compiled code: torch.compile compiles again for each value.

        >>> fo.layer_norm(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[-1.2247,  0.0000,  1.2247]])

    TensorFlow:
        >>> fo.layer_norm(tf.constant([[1.0, 2.0, 3.0]])).numpy().round(4)
        array([[-1.2247,  0.    ,  1.2247]], dtype=float32)

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if name is not None:
        return named(name, layer_norm, x, weight, bias, eps=eps)
    try:
        y, _, _ = ops.layer_norm(x, weight, bias, eps=eps)
        return y
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, weight, bias, eps):
            raise
    return call_symbolic(layer_norm, None, x, weight, bias, eps=eps)


def layer_norm_float8(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-05,
    scale: TensorLike | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with layer_norm(x) ≈ y · scale, y in 8 bits, rounded and scaled as by `bias_act_float8`.

    Args:
        x: as in `layer_norm`.
        weight: as in `layer_norm`.
        bias: as in `layer_norm`.
        eps: as in `layer_norm`.
        scale: as in `bias_act_float8`.
        scaling: as in `bias_act_float8`.
        dtype: as in `bias_act_float8`.

    Returns:
        y, of x's shape, and its scale. The normalized values are rounded once, from float32, or float64.

    Gradient:
        None, as in `bias_act_float8`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.
        RuntimeError (PyTorch), LookupError (TensorFlow): an argument requires a gradient.
        ValueError: `scaling` or `dtype` is not one of those of `bias_act_float8`.

    PyTorch:
        >>> y, scale = fo.layer_norm_float8(torch.tensor([[1.0, 2.0, 3.0]]))
        >>> y.float() * scale
        tensor([[-1.2247,  0.0000,  1.2247]])

    TensorFlow:
        >>> y, scale = fo.layer_norm_float8(tf.constant([[1.0, 2.0, 3.0]]))
        >>> (tf.cast(y, tf.float32) * scale).numpy().round(4)
        array([[-1.2247,  0.    ,  1.2247]], dtype=float32)

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    if name is not None:
        return named(name, layer_norm_float8, x, weight, bias, eps=eps, scale=scale, scaling=scaling, dtype=dtype)
    try:
        float8 = dtype_name(dtype)
        y, scales = ops.layer_norm_float8(x, weight, bias, scale, eps=eps, scaling=scaling, dtype=float8)
        return y, scales if scale is None else scale
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, weight, bias, eps, scale, scaling, dtype):
            raise
    return call_symbolic(layer_norm_float8, None, x, weight, bias, eps=eps, scale=scale, scaling=scaling, dtype=dtype)


def linear(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    activation: Activation = "identity",
    *,
    transpose_weight: bool = True,
    name: str | None = None,
) -> Tensor:
    """act(x Wᵀ + bias): a linear layer with its activation, in one pass.

    Bias and activation are applied to the sums before they are rounded. Strided rows of x and transposed or strided
    weights are read in place, as in `matmul`.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16.
        weight: [out, in], or [in, out] if `transpose_weight` is false; of x's dtype.
        bias: [out], of x's dtype.
        activation: as in `bias_act`.
        transpose_weight: whether the weight is [out, in], as torch.nn.Linear has it; Keras's Dense has [in, out].

    Returns:
        [..., out], of x's dtype. 16-bit inputs are summed in float32 over all of `in` and rounded once. float32 is
        computed in float32, without TF32. The order of the sums is `matmul`'s.

    Gradient:
        With z = x Wᵀ + bias and dz = dy · act'(z): dx = dz W, dW = dzᵀ x, and dbias is the sum of dz over all rows.
        z and dz are rounded to x's dtype, once: where relu's result is positive, its slope is 1. z is saved for the
        backward only if a gradient is wanted when `linear` is called, and not at all for the identity; otherwise the
        backward computes it again, with the same bits.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        Under autocast all inputs are cast to its dtype first, unless they are float64.

        >>> fo.linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [-1.0, 0.0]]), activation="relu")
        tensor([[11.,  0.]])

    TensorFlow:
        >>> fo.linear(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0], [-1.0, 0.0]]), activation="relu").numpy()
        array([[11.,  0.]], dtype=float32)
    """
    if name is not None:
        return named(name, linear, x, weight, bias, activation, transpose_weight=transpose_weight)
    try:
        keep = activation != "identity" and may_need_gradient(x, weight, bias)
        y, _ = ops.linear(x, weight, bias, activation=activation, transpose_weight=transpose_weight, keep=keep)
        return y
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, weight, bias, activation, transpose_weight):
            raise
    return call_symbolic(linear, None, x, weight, bias, activation, transpose_weight=transpose_weight)


def linear_cross_entropy(
    x: TensorLike,
    weight: TensorLike,
    labels: TensorLike,
    bias: TensorLike | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    softcap: float = 0.0,
    transpose_weight: bool = True,
    name: str | None = None,
) -> Tensor:
    """cross_entropy(softcap(x Wᵀ + bias), labels): the loss of a language model, without the logits.

    The logits exist a block at a time, in the compute dtype: they are rounded nowhere. The backward computes them
    again, which is a fourth product in place of the memory for all logits and for their gradients. What it takes
    beside the gradients themselves does not grow with the number of classes.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16.
        weight: [classes, in], or [in, classes] if `transpose_weight` is false; of x's dtype.
        labels: int32 or int64, [...]: a class in [0, classes) for each row of x, or ignore_index.
        bias: [classes], of x's dtype.
        ignore_index: rows with this label have zero loss and zero gradient, and do not count in the mean.
        label_smoothing: in [0, 1]; as in `cross_entropy`.
        reduction: "mean" over the rows that are not ignored, NaN if all are; "sum"; or "none", one loss per row.
        softcap: c > 0 replaces each logit z by c · tanh(z / c), as Gemma 2 has it; 0 for none.
        transpose_weight: as in `linear`.

    Returns:
        The loss, in float64 for float64 x and in float32 for all others: of the labels' shape for "none", otherwise a
        scalar.

    Gradient:
        With dz, the gradient of x Wᵀ: dx = dz W, dW = dzᵀ x, and dbias is the sum of dz over all rows. dz is rounded to
        x's dtype; the products sum in the compute dtype over all rows and over all classes, and round once. It can be
        differentiated again with respect to the upstream gradient, x, weight and bias, by the formula that has all
        logits.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        RuntimeError, InvalidArgumentError, ValueError: `label_smoothing` is outside [0, 1], or `softcap` is negative or
            not finite; on a CPU also: a label is neither a class nor ignore_index. A GPU cannot raise: there, such a
            label makes its loss, its row of dx and all of dW and dbias NaN.
        ValueError: `reduction` is not one of those above.

    PyTorch:
        Under autocast x, weight and bias are cast to its dtype first, unless they are float64.

        >>> x, weight = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.5]])
        >>> fo.linear_cross_entropy(x, weight, torch.tensor([0, -100]))
        tensor(0.3133)

    TensorFlow:
        >>> x, weight = tf.constant([[2.0], [0.0]]), tf.constant([[1.0], [0.5]])
        >>> loss = fo.linear_cross_entropy(x, weight, tf.constant([0, -100]))
        >>> print(loss.numpy().round(4))
        0.3133

    Source: Wijmans et al., "Cut your losses in large-vocabulary language models", 2024, whose gradients are filtered;
    these are exact.
    """
    if name is not None:
        return named(
            name,
            linear_cross_entropy,
            x,
            weight,
            labels,
            bias,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            transpose_weight=transpose_weight,
        )
    try:
        loss, _, _ = ops.linear_cross_entropy(
            x,
            weight,
            labels,
            bias,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            transpose_weight=transpose_weight,
        )
        return loss
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(
            x, weight, labels, bias, ignore_index, label_smoothing, reduction, softcap, transpose_weight
        ):
            raise
    return call_symbolic(
        linear_cross_entropy,
        None,
        x,
        weight,
        labels,
        bias,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        softcap=softcap,
        transpose_weight=transpose_weight,
    )


def matmul(
    a: TensorLike, b: TensorLike, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None
) -> Tensor:
    """a @ b; each matrix may be transposed.

    Transposed matrices and strided rows are read in place. Only 16-bit matrices on a GPU whose rows do not begin at
    multiples of 16 bytes are copied, into the operator's workspace, at most 128 MiB of each at a time.

    Args:
        a: [..., M, K], or [..., K, M] with `transpose_a`; float64, float32, float16 or bfloat16.
        b: [..., K, N], or [..., N, K] with `transpose_b`; of a's dtype. Its leading dimensions are a's, or it has none.
        transpose_a: whether a's last two dimensions are exchanged.
        transpose_b: whether b's last two dimensions are exchanged.

    Returns:
        [..., M, N], of a's dtype. 16-bit inputs are summed in float32 over all of K and rounded once. float32 is
        computed in float32, without TF32. The order of the sums follows from sizes, layouts and alignment alone: the
        same call gives the same bits, but a row may have other last bits among more rows, for which another order is
        faster. On GPUs of compute capability 9.0, up to 64 rows of 16 bits by an aligned matrix, whose columns are a
        multiple of 8, share one order.

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
    if name is not None:
        return named(name, matmul, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    try:
        return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(a, b, transpose_a, transpose_b):
            raise
    return call_symbolic(matmul, None, a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def polynomial_activation(
    x: TensorLike, coefficients: Sequence[float] = (1.0, 1.0, 1.0), *, name: str | None = None
) -> Tensor:
    """c₀ + c₁·x + c₂·x² + ..., by Horner's rule.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        coefficients: 1 to 8 numbers, from the constant term up, used unrounded in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = dy · (c₁ + 2·c₂·x + 3·c₃·x² + ...). The coefficients have no gradient.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): x has the wrong dtype, or there are no
            coefficients or more than 8.

    PyTorch:
        >>> fo.polynomial_activation(torch.tensor([1.0, 2.0]), (1.0, 0.0, 3.0))
        tensor([ 4., 13.])

    TensorFlow:
        >>> fo.polynomial_activation(tf.constant([1.0, 2.0]), (1.0, 0.0, 3.0)).numpy()
        array([ 4., 13.], dtype=float32)

    Source: Horner, "A new method of solving numerical equations of all orders, by continuous approximation", 1819.
    """
    if name is not None:
        return named(name, polynomial_activation, x, coefficients)
    try:
        return ops.polynomial_activation(x, coefficients=coefficients)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, coefficients):
            raise
    return call_symbolic(polynomial_activation, None, x, coefficients)


def reglu(gate: TensorLike, up: TensorLike | None = None, *, name: str | None = None) -> Tensor:
    """relu(gate) · up: `gated_act` with `relu`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Gradient:
        As in `gated_act`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        >>> fo.reglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[3., 8.]])

    TensorFlow:
        >>> fo.reglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[3., 8.]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if name is not None:
        return named(name, reglu, gate, up)
    try:
        try:
            return ops.gated_act(gate, up, activation="relu")
        except Exception as error:
            raise renamed(error, "gated_act", "reglu") from None
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(gate, up):
            raise
    return call_symbolic(reglu, None, gate, up)


def relu(x: TensorLike, *, name: str | None = None) -> Tensor:
    """max(x, 0).

    Args:
        x: float64, float32, float16 or bfloat16, any shape.

    Returns:
        A tensor of x's shape and dtype. A NaN stays NaN.

    Gradient:
        dx = dy where x > 0, and 0 elsewhere, also at 0. A NaN passes its gradient on.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): x has the wrong dtype.

    PyTorch:
        >>> fo.relu(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])

    TensorFlow:
        >>> fo.relu(tf.constant([-1.0, 2.0])).numpy()
        array([0., 2.], dtype=float32)

    Source: Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", 2010.
    """
    if name is not None:
        return named(name, relu, x)
    try:
        return ops.relu(x)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x):
            raise
    return call_symbolic(relu, None, x)


def rms_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · (weight + weight_offset), over the last dimension.

    A row's result does not depend on the other rows.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be strided: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None means a factor of 1.
        eps: at least 0; added to the mean of squares, in the compute dtype.
        weight_offset: added to the weight in the compute dtype; 1 for weights that are stored as the difference from 1,
            as in Gemma. Unused without a weight.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Gradient:
        With r = rsqrt(mean(x²) + eps), n = x·r and g = dy·(weight + weight_offset): dx = r·(g - n·mean(g·n)), and
        dweight is the sum of dy·n over the rows. One pass computes both.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.

    PyTorch:
        `eps` is a constant of compiled code: torch.compile compiles again for each value.

        >>> fo.rms_norm(torch.tensor([[3.0, 4.0]]))
        tensor([[0.8485, 1.1314]])

    TensorFlow:
        >>> fo.rms_norm(tf.constant([[3.0, 4.0]])).numpy().round(4)
        array([[0.8485, 1.1314]], dtype=float32)

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if name is not None:
        return named(name, rms_norm, x, weight, eps=eps, weight_offset=weight_offset)
    try:
        y, _ = ops.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
        return y
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, weight, eps, weight_offset):
            raise
    return call_symbolic(rms_norm, None, x, weight, eps=eps, weight_offset=weight_offset)


def rms_norm_float8(
    x: TensorLike,
    weight: TensorLike | None = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    scale: TensorLike | None = None,
    scaling: Scaling = "row",
    dtype: Any = "float8_e4m3fn",
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, scale) with rms_norm(x) ≈ y · scale, y in 8 bits, rounded and scaled as by `bias_act_float8`.

    Args:
        x: as in `rms_norm`.
        weight: as in `rms_norm`.
        eps: as in `rms_norm`.
        weight_offset: as in `rms_norm`.
        scale: as in `bias_act_float8`.
        scaling: as in `bias_act_float8`.
        dtype: as in `bias_act_float8`.

    Returns:
        y, of x's shape, and its scale. The normalized values are rounded once, from float32, or float64.

    Gradient:
        None, as in `bias_act_float8`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype, or a number is out of range.
        RuntimeError (PyTorch), LookupError (TensorFlow): an argument requires a gradient.
        ValueError: `scaling` or `dtype` is not one of those of `bias_act_float8`.

    PyTorch:
        >>> y, scale = fo.rms_norm_float8(torch.tensor([[1.0, 2.0]]))
        >>> y.float() * scale
        tensor([[0.6325, 1.2649]])

    TensorFlow:
        >>> y, scale = fo.rms_norm_float8(tf.constant([[1.0, 2.0]]))
        >>> (tf.cast(y, tf.float32) * scale).numpy().round(4)
        array([[0.6325, 1.2649]], dtype=float32)

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    if name is not None:
        return named(
            name,
            rms_norm_float8,
            x,
            weight,
            eps=eps,
            weight_offset=weight_offset,
            scale=scale,
            scaling=scaling,
            dtype=dtype,
        )
    try:
        float8 = dtype_name(dtype)
        y, scales = ops.rms_norm_float8(
            x, weight, scale, eps=eps, weight_offset=weight_offset, scaling=scaling, dtype=float8
        )
        return y, scales if scale is None else scale
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, weight, eps, weight_offset, scale, scaling, dtype):
            raise
    return call_symbolic(
        rms_norm_float8,
        None,
        x,
        weight,
        eps=eps,
        weight_offset=weight_offset,
        scale=scale,
        scaling=scaling,
        dtype=dtype,
    )


def rope(
    x: TensorLike,
    cos: TensorLike,
    sin: TensorLike,
    *,
    seq_dim: int = -3,
    interleaved: bool = False,
    name: str | None = None,
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
        interleaved: whether pair i is features 2i and 2i + 1, as in GPT-J, instead of i and i + R/2, as in GPT-NeoX.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx is dy, rotated by the opposite angles. cos and sin have no gradient.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

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
    if name is not None:
        return named(name, rope, x, cos, sin, seq_dim=seq_dim, interleaved=interleaved)
    try:
        return ops.rope(x, cos, sin, seq_dim=seq_dim, interleaved=interleaved)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, cos, sin, seq_dim, interleaved):
            raise
    return call_symbolic(rope, None, x, cos, sin, seq_dim=seq_dim, interleaved=interleaved)


def scale(x: TensorLike, factor: float | TensorLike, *, name: str | None = None) -> Tensor:
    """x · factor.

    Args:
        x: float64, float32, float16 or bfloat16, any shape.
        factor: a number, used unrounded in the compute dtype, or a tensor with one element, of x's dtype or float32.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Gradient:
        dx = factor·dy and dfactor = Σ dy·x.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        Under torch.compile a number that varies does not cause a recompilation.

        >>> fo.scale(torch.tensor([1.0, 2.0]), 0.5)
        tensor([0.5000, 1.0000])

    TensorFlow:
        >>> fo.scale(tf.constant([1.0, 2.0]), 0.5).numpy()
        array([0.5, 1. ], dtype=float32)
    """
    if name is not None:
        return named(name, scale, x, factor)
    try:
        return ops.scale(x, factor)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, factor):
            raise
    return call_symbolic(scale, None, x, factor)


def softmax(
    x: TensorLike, *, scale: float = 1.0, mask: TensorLike | None = None, causal: bool = False, name: str | None = None
) -> Tensor:
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
            dtype, or `scale` is not finite.

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
    if name is not None:
        return named(name, softmax, x, scale=scale, mask=mask, causal=causal)
    try:
        return ops.softmax(x, mask, scale=scale, causal=causal)
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(x, scale, mask, causal):
            raise
    return call_symbolic(softmax, None, x, scale=scale, mask=mask, causal=causal)


def swiglu(gate: TensorLike, up: TensorLike | None = None, *, name: str | None = None) -> Tensor:
    """silu(gate) · up: `gated_act` with `silu`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Gradient:
        As in `gated_act`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.

    PyTorch:
        >>> fo.swiglu(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.1932, 7.0464]])

    TensorFlow:
        >>> fo.swiglu(tf.constant([[1.0, 2.0, 3.0, 4.0]])).numpy().round(4)
        array([[2.1932, 7.0464]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if name is not None:
        return named(name, swiglu, gate, up)
    try:
        try:
            return ops.gated_act(gate, up, activation="silu")
        except Exception as error:
            raise renamed(error, "gated_act", "swiglu") from None
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not are_symbolic(gate, up):
            raise
    return call_symbolic(swiglu, None, gate, up)
