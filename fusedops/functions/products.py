"""Matrix products."""

from __future__ import annotations

from fusedops.functions.common import Activation, Refused, Tensor, may_need_gradient, ops
from fusedops.functions.refusal import refuse


def matmul(
    a: Tensor, b: Tensor, *more: Refused, transpose_a: bool = False, transpose_b: bool = False, **others: Refused
) -> Tensor:
    """a @ b; each matrix may be transposed.

    Transposed matrices and strided rows are read in place. Only 16-bit matrices on a GPU whose rows do not begin at
    multiples of 16 bytes are copied, into the operator's workspace, at most 128 MiB of each at a time.

    Args:
        a: [..., M, K], or [..., K, M] with `transpose_a`; float64, float32, float16 or bfloat16.
        b: [..., K, N], or [..., N, K] with `transpose_b`; of a's dtype. Its leading dimensions are a's, or it has none.
        transpose_a: True if a's last two dimensions are exchanged.
        transpose_b: True if b's last two dimensions are exchanged.

    Returns:
        [..., M, N], of a's dtype. 16-bit inputs are summed in float32 over all of K and rounded once. float32 is
        computed in float32, without TF32. The order of the sums follows from sizes, layouts and alignment alone: the
        same call gives the same bits, but a row may have other last bits among more rows, for which another order is
        faster. On GPUs of compute capability 9.0, up to 64 rows of 16 bits by an aligned matrix, whose columns are a
        multiple of 8, share one order.

    Gradient:
        da = dy @ bᵀ and db = aᵀ @ dy, for matrices that are not transposed. The gradient of one b for a batch of a is
        summed over the batch.

    PyTorch:
        Under autocast both inputs are cast to its dtype first, unless they are float64.

        >>> fo.matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), transpose_b=True)
        tensor([[11.]])

    TensorFlow:
        >>> fo.matmul(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0]]), transpose_b=True).numpy()
        array([[11.]], dtype=float32)
    """
    if more or others:
        refuse("matmul", more, others)
    return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "identity",
    *more: Refused,
    transpose_weight: bool = True,
    **others: Refused,
) -> Tensor:
    """act(x Wᵀ + bias): a linear layer with its activation, in one pass.

    Bias and activation are applied to the sums before they are rounded. Strided rows of x and transposed or strided
    weights are read in place, as in `matmul`.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16.
        weight: [out, in], or [in, out] if `transpose_weight` is false; of x's dtype.
        bias: [out], of x's dtype.
        activation: as in `bias_act`.
        transpose_weight: True if the weight is [out, in], as in torch.nn.Linear; Keras's Dense has [in, out].

    Returns:
        [..., out], of x's dtype. 16-bit inputs are summed in float32 over all of `in` and rounded once. float32 is
        computed in float32, without TF32. The order of the sums is `matmul`'s.

    Gradient:
        With z = x Wᵀ + bias and dz = dy · act'(z): dx = dz W, dW = dzᵀ x, and dbias is the sum of dz over all rows.
        z and dz are rounded to x's dtype, once: where relu's result is positive, its slope is 1. z is saved for the
        backward only if a gradient is wanted when `linear` is called, and not at all for the identity; otherwise the
        backward computes it again, with the same bits.

    Raises:
        ValueError: `activation` is not one of those of `bias_act`.

    PyTorch:
        Under autocast all inputs are cast to its dtype first, unless they are float64.

        >>> fo.linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [-1.0, 0.0]]), activation="relu")
        tensor([[11.,  0.]])

    TensorFlow:
        >>> fo.linear(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 4.0], [-1.0, 0.0]]), activation="relu").numpy()
        array([[11.,  0.]], dtype=float32)
    """
    if more or others:
        refuse("linear", more, others)
    keep = activation != "identity" and may_need_gradient(x, weight, bias)
    y, _ = ops.linear(x, weight, bias, activation=activation, transpose_weight=transpose_weight, keep=keep)
    return y


def gated_linear(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    activation: Activation = "silu",
    *more: Refused,
    transpose_weight: bool = True,
    **others: Refused,
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
    if more or others:
        refuse("gated_linear", more, others)
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
