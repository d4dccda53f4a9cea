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

    The logits are read once and no probabilities are stored, but for second derivatives. With label smoothing s, the
    loss of a row is (1 - s) times this, plus s times its mean over all classes as labels.

    Args:
        logits: float64, float32, float16 or bfloat16, [..., classes].
        labels: int32 or int64, [...]: for each row a class in [0, classes), or ignore_index.
        ignore_index: a row with this label has no loss and a gradient of zeros, and does not count in the mean.
        label_smoothing: in [0, 1].
        reduction: "mean" over the rows that are not ignored, NaN if all are; "sum"; or "none", a loss for each row.

    Returns:
        The loss in float64 for float64 logits, else in float32: of the labels' shape for "none", otherwise a scalar.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape, a dtype or `label_smoothing`
            is not as above, or, on a CPU, a label. On a GPU a label that is neither a class nor ignore_index makes its
            loss and its gradient NaN.
        ValueError: `reduction` is none of these.

    Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, for label smoothing.
    """
    loss, _, _ = ops.cross_entropy(
        logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss
