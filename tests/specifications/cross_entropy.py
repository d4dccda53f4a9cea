from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pairwise, pick

IGNORED = -100


class CrossEntropy(Specification):
    name = "cross_entropy"
    signature = (
        "(logits, labels, *, ignore_index=-100, label_smoothing=0.0, reduction='mean', class_weight=None, z_loss=0.0)"
    )
    outputs = ("loss",)
    compute_dtype_outputs = ("loss",)
    shared = ("class_weight",)
    not_differentiable = ("class_weight",)
    least_rank = 1
    row_options: Mapping[str, Any] = {"reduction": "none"}

    def sample(self, shape, random):
        return call(shape, random, reduction="none")

    def more_samples(self, random):
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.1):
                options = {"reduction": reduction, "label_smoothing": smoothing}
                yield call((4, 3, 11), random, f"{reduction}-{smoothing}", **options)
                yield call((11,), random, f"{reduction}-{smoothing}-one-row", **options)
                yield call((300, 7), random, f"{reduction}-{smoothing}-int32", np.int32, **options)
            # Weights that are 0 and others, in the label's term and in that of all classes.
            options = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 1e-2}
            yield call((4, 3, 11), random, f"{reduction}-weighted-z", weighted=True, **options)
            yield call((6, 11), random, f"{reduction}-weighted", np.int32, weighted=True, reduction=reduction)
        yield call((2, 40_000), random, "segments-weighted", weighted=True, label_smoothing=0.1, z_loss=1e-3)
        yield call((5, 9), random, "smooth", label_smoothing=1.0)
        yield call((2, 40_000), random, "segments", label_smoothing=0.1)
        for ignore_index in (0, 3, -1):
            sample = call((6, 4), random, reduction="sum")
            labels = np.where(sample.inputs["labels"] == IGNORED, ignore_index, sample.inputs["labels"])
            options = {"ignore_index": ignore_index, "reduction": "sum"}
            yield Sample({**sample.inputs, "labels": labels}, options, f"ignored-{ignore_index}")
        all_ignored = {"logits": random.normal(size=(3, 4)), "labels": np.full(3, IGNORED)}
        yield Sample(all_ignored, {"reduction": "sum"}, "all-ignored")
        large = call((4, 33), random)
        for smoothing in (0.0, 0.1):
            options = {"label_smoothing": smoothing}
            yield Sample({**large.inputs, "logits": 1e4 * large.inputs["logits"]}, options, f"large-{smoothing}")
            yield Sample({**large.inputs, "logits": 1e4 + large.inputs["logits"]}, options, f"far-{smoothing}")

    def draw(self, shape, random):
        options = {"label_smoothing": pick(random, 0.0, 0.1, 1.0), "reduction": pick(random, "mean", "sum", "none")}
        options["z_loss"] = pick(random, 0.0, 1e-2)
        dtype, weighted = pick(random, np.int32, np.int64), pick(random, True, False)
        return without_empty_mean(call(shape, random, dtype=dtype, weighted=weighted, **options))

    def special(self, values, random):
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        pairs = np.stack([a, b, np.ones_like(a)], -1)
        labels = np.arange(len(pairs)) % 4
        labels[labels == 3] = IGNORED
        for smoothing in (0.0, 0.25):
            options = {"reduction": "none", "label_smoothing": smoothing}
            yield Sample({"logits": pairs, "labels": labels}, options)
            equal = np.repeat(values[:, None], 37, -1)  # equal logits throughout a row cancel at any magnitude
            yield Sample({"logits": equal, "labels": labels[: len(values)]}, options, f"equal-{smoothing}")
        yield Sample({"logits": pairs[:1], "labels": np.array([IGNORED])})  # the mean of no rows

    def reference(self, logits, labels, **options):
        with np.errstate(all="ignore"):
            rows = Rows(logits, labels, **options)
            return rows.reduced(rows.losses())

    def magnitude(self, logits, labels, **options):
        with np.errstate(all="ignore"):
            rows = Rows(logits, labels, **options)
            return rows.reduced(rows.loss_magnitudes())

    def gradients(self, dloss, *, logits, labels, **options):
        with np.errstate(all="ignore"):
            return {"logits": Rows(logits, labels, **options).gradient(dloss)}

    def gradient_magnitude(self, dloss, *, logits, labels, **options):
        """The terms, plus the effect of an exponent's roundings on the softmax."""
        with np.errstate(all="ignore"):
            return {"logits": Rows(logits, labels, **options).gradient_magnitude(dloss)}

    def roundings(self, logits, labels, **options):
        row = 8 + pairwise(logits.shape[-1])
        return {"loss": row + pairwise(labels.size), "dlogits": row + 4}

    bad = bad_calls(
        "cross_entropy",
        {"logits": "float32[2, 3]", "labels": "int64[2]"},
        {
            "logits must be float64, float32, float16 or bfloat16; got int32": "int32[2, 3]",
            "logits must have at least one dimension; got shape []": {"logits": "float32[]", "labels": "int64[]"},
            "labels must be int32 or int64; got float32": "float32[2]",
            "labels must have shape [2], that of the rows of logits; got [3]": "int64[3]",
            "labels must have shape [2], that of the rows of logits; got [2, 3]": "int64[2, 3]",
            "labels must have shape [2, 3], that of the rows of logits; got [2, 5]: "
            "give logits with the classes last, as [2, 5, 3]": {"logits": "float32[2, 3, 5]", "labels": "int64[2, 5]"},
            "label_smoothing must be in [0, 1]; got 1.5": 1.5,
            "label_smoothing must be in [0, 1]; got nan": float("nan"),
            "reduction must be one of mean, sum, none; got 'average'": "average",
            "reduction must be a string; got None": None,
            "ignore_index must be an integer; got 0.5": 0.5,
            "class_weight must be float32; got float64": "float64[3]",
            "class_weight must have shape [3], one number for each class; got [2]": "float32[2]",
            "class_weight must have shape [3], one number for each class; got [3, 1]": "float32[3, 1]",
            "z_loss must be a finite number, at least 0; got -1": -1.0,
            "labels must be a tensor; got NoneType": None,
        },
    )


class Rows:
    """Intermediate values of the losses and their gradients, row by row.

    `error`: the magnitude of the logits' own errors, for each row.
    """

    def __init__(
        self,
        logits,
        labels,
        ignore_index=IGNORED,
        label_smoothing=0.0,
        reduction="mean",
        class_weight=None,
        z_loss=0.0,
    ):
        self.logits, self.labels, self.classes = logits, labels, logits.shape[-1]
        self.smoothing, self.reduction, self.z_loss = label_smoothing, reduction, logits.dtype.type(z_loss)
        self.ignored = labels == ignore_index
        self.is_label = np.where(self.ignored, -1, labels)[..., None] == np.arange(self.classes)
        self.max = logits.max(-1, keepdims=True, initial=-np.inf)
        self.below = logits - self.max
        self.log_sum = np.log(np.exp(self.below).sum(-1, keepdims=True))
        self.log_p = self.below - self.log_sum
        self.lse = (self.max + self.log_sum)[..., 0]
        self.is_weighted = class_weight is not None
        self.weights = np.ones(self.classes, logits.dtype) if class_weight is None else class_weight
        self.weight = self.of_label(np.broadcast_to(self.weights, logits.shape))

    @property
    def target(self):
        """The target distribution, times the weights."""
        return (self.uniform() + self.is_label * self.logits.dtype.type(1 - self.smoothing)) * self.weights

    @property
    def scale(self):
        """The factor of the softmax in the gradient."""
        scale = self.target.sum(-1) if self.is_weighted else self.logits.dtype.type(1)
        return scale + 2 * self.z_loss * self.lse if self.z_loss else np.broadcast_to(scale, self.lse.shape)

    def losses(self):
        dtype, log_sum = self.logits.dtype.type, self.log_sum[..., 0]
        loss = log_sum - self.of_label(self.below)
        if self.is_weighted:
            loss = loss * self.weight
        if self.smoothing:
            mean = log_sum * self.weights.mean() if self.is_weighted else log_sum
            loss = dtype(1 - self.smoothing) * loss + dtype(self.smoothing) * (mean - self.weighted_mean(self.below))
        if self.z_loss:
            loss = loss + self.z_loss * self.lse * self.lse
        return np.where(self.ignored, dtype(0), loss)

    def loss_magnitudes(self, error=0):
        """log_sum errs by the effect of the exponents' roundings."""
        finite = np.where(np.isfinite(self.below), -self.below, 0)
        log_sum = 1 + np.sum(np.exp(self.log_p) * finite, -1) + np.abs(self.log_sum[..., 0]) + 2 * error
        size = (log_sum + np.abs(self.of_label(self.below))) * (self.weight if self.is_weighted else 1)
        if self.smoothing:
            size = size + self.smoothing * (log_sum * self.weights.mean() + self.weighted_mean(finite))
        if self.z_loss:
            lse = np.abs(self.max[..., 0]) + log_sum
            size = size + self.z_loss * np.abs(self.lse) * (np.abs(self.lse) + 2 * lse)
        return np.where(self.ignored, 0, size)

    def gradient(self, dloss):
        rest = (np.exp(self.log_p) * self.scale[..., None] - self.target) * self.slope(dloss)
        return np.where(self.ignored[..., None], 0, rest)

    def gradient_magnitude(self, dloss, error=0):
        error = np.asarray(error)[..., None]
        log_sum = 1 + np.abs(self.log_sum)
        scale = np.abs(self.scale)[..., None]
        if self.z_loss:
            finite = np.where(np.isfinite(self.below), -self.below, 0)
            exponents = np.sum(np.exp(self.log_p) * finite, -1, keepdims=True)
            scale = scale + 2 * self.z_loss * (np.abs(self.max) + log_sum + exponents + error)
        p = np.exp(self.log_p)
        p = np.where(p == 0, 0, p * (log_sum + np.abs(self.below) + 2 * error) * scale)
        return np.where(self.ignored[..., None], 0, (p + self.target) * np.abs(self.slope(dloss)))

    def reduced(self, losses):
        if self.reduction == "none":
            return losses
        total = losses.sum()
        return np.asarray(total if self.reduction == "sum" else total / self.count())

    def count(self):
        counts = self.weight if self.is_weighted else np.ones_like(self.weight)
        return np.where(self.ignored, self.logits.dtype.type(0), counts).sum()

    def slope(self, dloss):
        """The factor of each row's gradient."""
        return np.asarray(dloss / self.count() if self.reduction == "mean" else dloss)[..., None]

    def of_label(self, values):
        return np.where(self.is_label, values, 0).sum(-1)

    def weighted_mean(self, values):
        return (values * self.weights if self.is_weighted else values).mean(-1)

    def uniform(self):
        return self.logits.dtype.type(self.smoothing / self.classes if self.classes else 0)


def without_empty_mean(sample):
    """The call with a sum in place of a mean of no rows, or of rows whose weights are 0, which is NaN."""
    labels, weights = sample.inputs["labels"], sample.inputs.get("class_weight")
    counted = labels[labels != sample.options.get("ignore_index", IGNORED)]
    if counted.size and (weights is None or weights[counted].any()):
        return sample
    return Sample(sample.inputs, {**sample.options, "reduction": "sum"}, sample.name)


def class_weights(random, classes):
    """Multiples of 1/8, one of them 0, in float32."""
    weights = random.integers(1, 16, size=classes).astype(np.float32) / 8
    weights[: classes // 2 : 3] = 0
    return weights


def call(shape, random, name="", dtype=np.int64, weighted=False, **options):
    """Every fifth row is ignored, and every row without classes."""
    labels = random.integers(max(shape[-1], 1), size=shape[:-1]).astype(dtype)
    ignored = np.arange(labels.size).reshape(labels.shape) % 5 == 4
    labels = np.where(ignored | (shape[-1] == 0), dtype(IGNORED), labels)
    inputs = {"logits": random.normal(size=shape), "labels": np.asarray(labels, dtype)}
    if weighted:
        inputs["class_weight"] = class_weights(random, shape[-1])
    return Sample(inputs, options, name)


SPECIFICATION = CrossEntropy()
