"""The cross-entropy loss."""

from __future__ import annotations

import functools
from typing import Any

import keras

from fusedops.keras_layers.backend import fo, is_floating, own, rank_of
from fusedops.keras_layers.internals import get_keras_mask, reduce_weighted_values, set_keras_mask
from fusedops.keras_layers.layer import register
from fusedops.keras_layers.linear_loss import ignore_index
from fusedops.keras_layers.logits import Logits


@register
class SparseCategoricalCrossentropy(keras.losses.SparseCategoricalCrossentropy):
    """−log softmax(y_pred)[y_true] for each row, weighted and reduced as in Keras: `fusedops.tf.cross_entropy`.

    The arguments and the config are those of `keras.losses.SparseCategoricalCrossentropy`. Sample weights, masks and
    `ignore_class` have the same effect.

    Call arguments:
        y_true: [...] or [..., 1], of any type, cast to int64.
        y_pred: logits [..., classes], float64, float32, float16 or bfloat16. They are read in place: 16-bit logits are
            computed in float32 without a float32 copy.

    Returns:
        The loss, in the dtype that Keras's has.

    Raises:
        InvalidArgumentError: on a CPU, a label is neither a class nor `ignore_class`. On a GPU its loss and gradient
            are NaN.

    Keras's own code computes the loss of probabilities (`from_logits=False`, which is the default). If fusedops's XLA
    library is not loaded, it computes all losses in graphs, because Keras does not ask a loss before it compiles.

    Example:
        >>> loss = fk.SparseCategoricalCrossentropy(from_logits=True)
        >>> print(loss(tf.constant([0]), tf.constant([[2.0, 1.0]])).numpy().round(4))
        0.3133
    """

    def why_not(self, y_true: Any = None, y_pred: Any = None) -> str | None:
        """The reason why Keras's own code computes this loss, for these tensors if given; None if the kernel does."""
        if not self.from_logits:
            return "from_logits is not set"
        # A model that makes no logits reports this by supports_jit.
        if own.xla_fault() and not own.are_eager([], self.dtype) and not isinstance(y_pred, Logits):
            return "XLA does not know the operators"
        return None if y_pred is None else self._unfused(y_true, y_pred)

    def _unfused(self, y_true: Any, y_pred: Any) -> str | None:
        """The reason why the kernel does not take the tensors or the axis; None if it does."""
        is_tensor = keras.ops.is_tensor
        are_tensors = is_tensor(y_true) and (is_tensor(y_pred) or isinstance(y_pred, Logits))
        if not are_tensors or not is_floating(y_pred.dtype):
            return "these are no tensors of labels and logits"
        if hasattr(y_pred, "_keras_logits"):
            return "y_pred came out of a softmax"  # Keras warns, and uses the logits before it
        rank = rank_of(y_pred)
        if rank is None or rank_of(y_true) not in ((rank - 1,) if not _is_column(y_true, rank) else (rank,)):
            return "y_true has another rank than the rows of y_pred"
        if self._fn_kwargs["axis"] not in (-1, rank - 1):
            return "axis is not the last"
        return "there is one class" if y_pred.shape[-1] == 1 else None  # Keras would squeeze it

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true, y_pred = _tensor(y_true), _tensor(y_pred)
        if self.why_not(y_true, y_pred):
            logits = y_pred.computed() if isinstance(y_pred, Logits) else y_pred
            return super().__call__(y_true, logits, sample_weight)
        with keras.name_scope(self.name):
            if isinstance(y_pred, Logits) and sample_weight is None and self.reduction not in (None, "none"):
                return self._total(y_true, y_pred)
            losses = self.call(y_true, y_pred)
            masks = [mask for mask in map(get_keras_mask, (y_pred, losses)) if mask is not None]
            mask = functools.reduce(keras.ops.logical_and, masks) if masks else None
            return reduce_weighted_values(losses, sample_weight, mask, self.reduction, self.dtype)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if self.why_not(y_true, y_pred):
            return super().call(y_true, y_pred)
        labels, ignored = _labels(y_true, y_pred), ignore_index(self.ignore_class)
        if isinstance(y_pred, Logits):
            losses = y_pred.loss(labels, ignored, "none")
        else:
            logits = keras.ops.cast(y_pred, "float64") if self.dtype == "float64" else y_pred
            losses = fo.cross_entropy(logits, labels, ignore_index=ignored, reduction="none")
        if self.ignore_class is not None:
            set_keras_mask(losses, keras.ops.not_equal(labels, ignored))
        return losses

    def _total(self, y_true: Any, y_pred: Logits) -> Any:
        """The reduced loss of rows without weights of their own.

        It is a multiple of the sum, whose forward computes the gradients, too. Keras's reduction of ones gives the
        factor.
        """
        labels, ignored = _labels(y_true, y_pred), ignore_index(self.ignore_class)
        mask = get_keras_mask(y_pred)
        if self.ignore_class is not None:
            counts = keras.ops.not_equal(labels, ignored)
            mask = counts if mask is None else keras.ops.logical_and(mask, counts)
        if mask is not None:
            labels = keras.ops.where(mask, labels, keras.ops.full_like(labels, ignored))
        total = keras.ops.cast(y_pred.loss(labels, ignored, "sum"), self.dtype)
        ones = keras.ops.ones_like(labels, self.dtype)
        rows = keras.ops.sum(ones if mask is None else keras.ops.cast(mask, self.dtype))
        mean = reduce_weighted_values(ones, None, mask, self.reduction, self.dtype)
        return total * keras.ops.divide_no_nan(mean, rows)


def _labels(y_true: Any, y_pred: Any) -> Any:
    labels = keras.ops.squeeze(y_true, -1) if rank_of(y_true) == rank_of(y_pred) else y_true
    return keras.ops.cast(labels, own.LABELS)


def _is_column(y_true: Any, rank: int) -> bool:
    return rank_of(y_true) == rank and y_true.shape[-1] == 1


def _tensor(value: Any) -> Any:
    """An array as a tensor. Nested structures and `Logits` stay unchanged."""
    if keras.ops.is_tensor(value) or isinstance(value, (list, tuple, dict, Logits)):
        return value
    return keras.ops.convert_to_tensor(value)
