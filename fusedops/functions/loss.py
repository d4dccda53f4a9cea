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
    class_weight: Tensor | None = None,
    z_loss: float = 0.0,
    **others: Refused,
) -> Tensor:
    """-log softmax(logits)[label], over the last dimension.

    The logits are read once, and no probabilities are stored except for second derivatives. With label smoothing s, the
    loss of a row is (1 - s) · loss(label) + s · (mean of the loss over all classes). Weights w of the classes multiply
    the loss of each class in both terms. A z-loss adds z · lse², with lse = log Σ exp(logits), which keeps lse near 0.

    Args:
        logits: float64, float32, float16 or bfloat16, [..., classes].
        labels: int32 or int64, [...]: a class in [0, classes) for each row, or ignore_index.
        ignore_index: rows with this label have zero loss and zero gradient, and do not count in the mean.
        label_smoothing: in [0, 1].
        reduction: "mean" over the rows that are not ignored, NaN if all are; "sum"; or "none", one loss per row. The
            mean divides by the number of these rows or, with `class_weight`, by the sum of the weights of their labels.
        class_weight: float32, [classes], at least 0; it has no gradient.
        z_loss: at least 0.

    Returns:
        The loss, in float64 for float64 logits and in float32 for all others: of the labels' shape for "none",
        otherwise a scalar.

    Gradient:
        softmax(logits) - onehot(label) for each row, times the upstream gradient, and divided by the number of rows
        that count for "mean"; with smoothing, the target is (1 - s)·onehot + s / classes. With weights the target is
        multiplied by w, and softmax by its sum, to which a z-loss adds 2·z·lse. It has the logits' dtype. It can be
        differentiated again with respect to the upstream gradient only. On a GPU, in PyTorch, rows of 16-bit
        gradients begin at multiples of 16 bytes, as the products that read them need.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the
            wrong shape or dtype.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX):
            `label_smoothing` is outside [0, 1], or `z_loss` is negative or not finite; on a CPU also: a label is
            neither a class nor ignore_index, or a weight is negative. A GPU cannot raise: there, such a label makes its
            loss and its gradient NaN, and such a weight those of all rows that it counts in.
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
        logits,
        labels,
        class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        z_loss=z_loss,
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
    class_weight: Tensor | None = None,
    z_loss: float = 0.0,
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
        reduction: as in `cross_entropy`.
        softcap: c > 0 replaces each logit z by c · tanh(z / c), as Gemma 2 has it; 0 for none.
        transpose_weight: as in `linear`.
        class_weight, z_loss: as in `cross_entropy`.

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
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the
            wrong shape or dtype.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX):
            `label_smoothing` is outside [0, 1], `softcap` or `z_loss` is negative or not finite; on a CPU also: a label
            is neither a class nor ignore_index, or a weight of a class is negative. A GPU cannot raise: there, such a
            label or weight makes its loss, its row of dx and all of dW and dbias NaN.
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
        class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        softcap=softcap,
        transpose_weight=transpose_weight,
        z_loss=z_loss,
        keep_dx=keeps and may_keep_gradient(x),
        keep_dweight=keeps and may_keep_gradient(weight),
        keep_dbias=keeps and may_keep_gradient(bias),
    )
    return loss


def linear_log_prob(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *more: Refused,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    entropy: bool = False,
    transpose_weight: bool = True,
    **others: Refused,
) -> tuple[Tensor, ...]:
    """log softmax(z)[label], log Σ exp(z) and the entropy of softmax(z), for z = softcap(x Wᵀ + bias) / temperature.

    These are the terms of a policy gradient, of a preference loss and of their penalties, for each row of x and without
    the logits. The logits exist a block at a time, as in `linear_cross_entropy`, and the backward computes them again.

    Args:
        x, weight, bias, softcap, transpose_weight: as in `linear_cross_entropy`.
        labels: int32 or int64, [...]: a class in [0, classes) for each row of x, or ignore_index.
        temperature: above 0; divides the logits.
        ignore_index: rows with this label have zero log-probability and entropy, without a gradient from them.
        entropy: also returns the entropy.

    Returns:
        A tuple of the log-probability of the label and the log-sum-exp, with `entropy` also of the entropy in nats:
        each of the labels' shape, in float64 for float64 x and in float32 for all others.

    Gradient:
        Of x, weight and bias, from all results: with p = softmax(z), entropy h and upstream gradients a, b and c of the
        results, that of z is a · onehot(label) + p · (b - a - c · (h + log p)). The rest is as in
        `linear_cross_entropy`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the
            wrong shape or dtype.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX):
            `temperature` is not above 0 or not finite, or `softcap` is negative or not finite; on a CPU also: a label
            is neither a class nor ignore_index. A GPU cannot raise: there, such a label makes its log-probability, its
            row of dx and all of dW and dbias NaN.

    PyTorch:
        Under autocast x, weight and bias are cast to its dtype first, unless they are float64.

        >>> x, weight = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.5]])
        >>> fo.linear_log_prob(x, weight, torch.tensor([0, 1]), entropy=True)
        (tensor([-0.3133, -0.6931]), tensor([2.3133, 0.6931]), tensor([0.5822, 0.6931]))

    TensorFlow:
        >>> x, weight = tf.constant([[2.0], [0.0]]), tf.constant([[1.0], [0.5]])
        >>> log_prob, lse = fo.linear_log_prob(x, weight, tf.constant([0, 1]))
        >>> print(log_prob.numpy().round(4), lse.numpy().round(4))
        [-0.3133 -0.6931] [2.3133 0.6931]

    Source: Wijmans et al., "Cut your losses in large-vocabulary language models", 2024.
    """
    if more or others:
        refuse("linear_log_prob", more, others)
    log_prob, lse, entropies, _ = ops.linear_log_prob(
        x,
        weight,
        labels,
        bias,
        temperature=temperature,
        softcap=softcap,
        ignore_index=ignore_index,
        transpose_weight=transpose_weight,
        need_entropy=bool(entropy),
    )
    return (log_prob, lse, entropies) if entropy else (log_prob, lse)


def linear_kl_div(
    x: Tensor,
    weight: Tensor,
    target_x: Tensor,
    target_weight: Tensor,
    bias: Tensor | None = None,
    target_bias: Tensor | None = None,
    *more: Refused,
    labels: Tensor | None = None,
    beta: float = 0.0,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    transpose_weight: bool = True,
    **others: Refused,
) -> Tensor:
    """The divergence of softmax(x Wᵀ + bias) from the softmax of a target head, for distillation without the logits.

    Let p be the model's probabilities, q the target's, and m = beta · q + (1 - beta) · p. The divergence of a row is
    KL(q ‖ p) for beta 0 and KL(p ‖ q) for beta 1. Between these it is the generalized Jensen-Shannon divergence,
    beta · KL(q ‖ m) + (1 - beta) · KL(p ‖ m). The logits of both heads exist for a block of rows at a time. Gradients
    are computed along with the loss, by four products, or in the backward, by six, as in `linear_cross_entropy`.

    Args:
        x: [..., in], float64, float32, float16 or bfloat16.
        weight: [classes, in], or [in, classes] if `transpose_weight` is false; of x's dtype.
        target_x: [..., in of the target], of x's dtype, with as many rows as x.
        target_weight: as weight, with the same classes.
        bias: [classes], of x's dtype.
        target_bias: [classes], of x's dtype.
        labels: int32 or int64, [...]: rows with the label ignore_index are left out. Other labels have no meaning.
        beta: in [0, 1].
        temperature: above 0; divides the logits of both heads.
        ignore_index: rows with this label have zero loss and zero gradient, and do not count in the mean.
        reduction: "mean" over the rows that are not ignored, NaN if all are; "sum"; or "none", one loss per row.
        transpose_weight: as in `linear`, for both weights.

    Returns:
        The loss, in float64 for float64 x and in float32 for all others: of the shape of x's rows for "none", otherwise
        a scalar.

    Gradient:
        Of x, weight and bias; the target has none. The gradient of a logit divided by the temperature is p - q for beta
        0, and p · (log p - log q - KL(p ‖ q)) for beta 1. Between these it is
        (1 - beta) · p · (log p - log m - KL(p ‖ m)). The rest is as in `linear_cross_entropy`.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): an argument has the
            wrong shape or dtype, or the target has other classes.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError or JaxRuntimeError (JAX):
            `beta` is outside [0, 1], or `temperature` is not above 0 or not finite.
        ValueError: `reduction` is not one of those above.

    PyTorch:
        Under autocast the tensors are cast to its dtype first, unless they are float64.

        >>> x, target_x, weight = torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0], [0.5]])
        >>> fo.linear_kl_div(x, weight, target_x, weight)
        tensor(0.1201)

    TensorFlow:
        >>> x, target_x, weight = tf.constant([[2.0]]), tf.constant([[0.0]]), tf.constant([[1.0], [0.5]])
        >>> loss = fo.linear_kl_div(x, weight, target_x, weight)
        >>> print(loss.numpy().round(4))
        0.1201

    Source: Agarwal et al., "On-policy distillation of language models", 2024.
    """
    if more or others:
        refuse("linear_kl_div", more, others)
    keeps = reduction != "none"
    loss, _, _, _, _ = ops.linear_kl_div(
        x,
        weight,
        target_x,
        target_weight,
        bias,
        target_bias,
        labels,
        beta=beta,
        temperature=temperature,
        ignore_index=ignore_index,
        reduction=reduction,
        transpose_weight=transpose_weight,
        keep_dx=keeps and may_keep_gradient(x),
        keep_dweight=keeps and may_keep_gradient(weight),
        keep_dbias=keeps and may_keep_gradient(bias),
    )
    return loss
