"""Losses."""

from __future__ import annotations

from fusedops.functions.common import Reduction, Refused, Tensor, may_keep_gradient, ops
from fusedops.functions.refusal import refuse


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *more: Refused,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    **others: Refused,
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
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): `label_smoothing` is outside [0, 1]; on
            a CPU also: a label is neither a class nor ignore_index. A GPU cannot raise: there, such a label makes its
            loss and its gradient NaN.
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
    if more or others:
        refuse("cross_entropy", more, others)
    loss, _, _ = ops.cross_entropy(
        logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *more: Refused,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    softcap: float = 0.0,
    transpose_weight: bool = True,
    **others: Refused,
) -> Tensor:
    """cross_entropy(softcap(x Wᵀ + bias), labels): the loss of a language model, without the logits.

    The logits exist a block at a time, in the compute dtype: they are rounded nowhere. If a gradient is wanted when the
    function is called, the gradients are computed along with the loss, and the backward scales them: three products,
    with memory for some rows of the logits in place of all. For 16-bit inputs of many rows the gradient of the weight
    takes twice its size meanwhile. With `reduction="none"`, in float16, or if no gradient was wanted, the backward
    computes the logits again: four products.

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
        x's dtype; the products sum in the compute dtype over all rows and over all classes, and round once. "mean" and
        "sum", except in float16, then multiply by the upstream gradient and round again. The bits do not depend on
        when the gradients are computed. They can be differentiated again with respect to the upstream gradient, x,
        weight and bias, by the formula that has all logits.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): an argument has the wrong shape or
            dtype.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): `label_smoothing` is outside [0, 1], or
            `softcap` is negative or not finite; on a CPU also: a label is neither a class nor ignore_index. A GPU
            cannot raise: there, such a label makes its loss, its row of dx and all of dW and dbias NaN.
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
    if more or others:
        refuse("linear_cross_entropy", more, others)
    keeps = reduction != "none"
    loss, _, _, _, _, _ = ops.linear_cross_entropy(
        x,
        weight,
        labels,
        bias,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        softcap=softcap,
        transpose_weight=transpose_weight,
        keep_dx=keeps and may_keep_gradient(x),
        keep_dweight=keeps and may_keep_gradient(weight),
        keep_dbias=keeps and may_keep_gradient(bias),
    )
    return loss
