"""The cross-entropy loss."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from fusedops.checks import not_finite_or_negative
from fusedops.conversion import has_own_options
from fusedops.functions.common import Reduction
from fusedops.keras_layers.backend import PACKAGE, fo, is_floating, own, rank_of
from fusedops.keras_layers.internals import get_keras_mask, reduce_weighted_values, set_keras_mask
from fusedops.keras_layers.layer import register
from fusedops.keras_layers.linear_loss import ignore_index
from fusedops.keras_layers.logits import Logits

_NAME = f"{PACKAGE}.keras.SparseCategoricalCrossentropy"


@register
class SparseCategoricalCrossentropy(keras.losses.SparseCategoricalCrossentropy):
    """−log softmax(y_pred)[y_true] for each row, weighted and reduced as in Keras: `fusedops.tf.cross_entropy`.

    The other arguments and the rest of the config are those of `keras.losses.SparseCategoricalCrossentropy`. Sample
    weights, masks and `ignore_class` have the same effect.

    Args:
        class_weight: [classes], a number for each class that multiplies the loss of its rows, before they are reduced
            as in Keras; no mean divides by it.
        z_loss: z > 0 adds z · (log Σ exp(y_pred))² to the loss of each row.

    Call arguments:
        y_true: [...] or [..., 1], of any type, cast to int64.
        y_pred: logits [..., classes], float64, float32, float16 or bfloat16. They are read in place: 16-bit logits are
            computed in float32 without a float32 copy.

    Returns:
        The loss, in the dtype that Keras's has.

    Raises:
        InvalidArgumentError: on a CPU, a label is neither a class nor `ignore_class`. On a GPU its loss and gradient
            are NaN.
        ValueError: `class_weight` has another size or a negative number, or `z_loss` is negative or not finite. Or one
            of them is given, and y_pred does not hold logits over its last dimension.

    Keras's own code computes the loss of probabilities (`from_logits=False`, which is the default). If fusedops's XLA
    library is not loaded, Keras's operators compute all losses in graphs, because Keras does not ask a loss before it
    compiles.

    Example:
        >>> loss = fk.SparseCategoricalCrossentropy(from_logits=True)
        >>> print(loss(tf.constant([0]), tf.constant([[2.0, 1.0]])).numpy().round(4))
        0.3133
    """

    own_options = ("class_weight", "z_loss")
    class_weight: list[float] | None = None
    z_loss: float = 0.0

    def __init__(
        self,
        from_logits: bool = False,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        axis: int = -1,
        name: str = "sparse_categorical_crossentropy",
        dtype: Any = None,
        *,
        class_weight: Sequence[float] | None = None,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__(from_logits, ignore_class, reduction, axis, name, dtype)
        if isinstance(class_weight, Mapping):
            raise ValueError(f"{_NAME}: class_weight must have a number for each class; got a dict")
        self.class_weight = None if class_weight is None else [float(weight) for weight in class_weight]
        self.z_loss = z_loss
        for label, weight in enumerate(self.class_weight or ()):
            if not weight >= 0:
                raise ValueError(f"{_NAME}: class_weight must not be negative; got {weight:g} for class {label}")
        if problem := not_finite_or_negative("z_loss", z_loss):
            raise ValueError(f"{_NAME}: {problem}")
        if has_own_options(self) and not self.from_logits:
            raise ValueError(f"{_NAME}: from_logits must be True beside class_weight or z_loss; got False")

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
        is_unfused = bool(self.why_not(y_true, y_pred))
        if is_unfused and not has_own_options(self):
            return super().call(y_true, y_pred)
        if reason := is_unfused and self._unfused(y_true, y_pred):
            raise ValueError(f"{_NAME}: class_weight and z_loss must be left out for this y_pred; {reason}")
        labels, ignored = _labels(y_true, y_pred), ignore_index(self.ignore_class)
        if is_unfused:
            losses = self._plain(super().call(y_true, y_pred), labels, y_pred)
        elif isinstance(y_pred, Logits):
            losses = y_pred.loss(labels, **self._options("none"))
        else:
            logits = keras.ops.cast(y_pred, "float64") if self.dtype == "float64" else y_pred
            losses = fo.cross_entropy(logits, labels, **self._options("none"))
        if self.ignore_class is not None:
            set_keras_mask(losses, keras.ops.not_equal(labels, ignored))
        return losses

    def _options(self, reduction: Reduction) -> dict[str, Any]:
        return {
            "ignore_index": ignore_index(self.ignore_class),
            "reduction": reduction,
            "class_weight": self._weights(),
            "z_loss": self.z_loss,
        }

    def _weights(self) -> Any:
        weights = self.class_weight
        return None if weights is None else keras.ops.convert_to_tensor(weights, "float32")

    def _plain(self, losses: Any, labels: Any, logits: Any) -> Any:
        """Keras's own loss of each row, with class weights and a z-loss by Keras's operators."""
        counts, classes = keras.ops.not_equal(labels, ignore_index(self.ignore_class)), logits.shape[-1]
        if self.class_weight is not None:
            if classes not in (None, len(self.class_weight)):
                shape = f"shape [{classes}], one number for each class; got [{len(self.class_weight)}]"
                raise ValueError(f"{_NAME}: class_weight must have {shape}")
            weights = keras.ops.take(self._weights(), keras.ops.where(counts, labels, keras.ops.zeros_like(labels)))
            losses = losses * keras.ops.cast(weights, losses.dtype)
        extra = self.z_loss * keras.ops.square(keras.ops.logsumexp(logits, -1))
        return losses + keras.ops.where(counts, extra, keras.ops.zeros_like(extra))

    def get_config(self) -> dict[str, Any]:
        """Keras's config; only with options of its own it has more, so that Keras loads a loss without them."""
        options = {name: getattr(self, name) for name in self.own_options} if has_own_options(self) else {}
        return {**super().get_config(), **options}

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
        total = keras.ops.cast(y_pred.loss(labels, **self._options("sum")), self.dtype)
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
