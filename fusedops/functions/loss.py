"""Losses."""

from __future__ import annotations

from fusedops.functions.common import Reduction, Tensor, ops


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
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
        can be differentiated again with respect to the upstream gradient only.

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
    loss, _, _ = ops.cross_entropy(
        logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss
