from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pairwise, pick

IGNORED = -100


class CrossEntropy(Specification):
    name = "cross_entropy"
    signature = "(logits, labels, *, ignore_index=-100, label_smoothing=0.0, reduction='mean')"
    outputs = ("loss",)
    compute_dtype_outputs = ("loss",)
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
        sample = call(shape, random, dtype=pick(random, np.int32, np.int64), **options)
        if np.all(sample.inputs["labels"] == IGNORED):  # the mean of no rows is NaN
            return Sample(sample.inputs, {**options, "reduction": "sum"})
        return sample

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

    def reference(self, logits, labels, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        with np.errstate(all="ignore"):
            losses = Rows(logits, labels, ignore_index).losses(label_smoothing)
            return reduced(losses, labels, ignore_index, reduction)

    def magnitude(self, logits, labels, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        with np.errstate(all="ignore"):
            sizes = Rows(logits, labels, ignore_index).loss_magnitudes(label_smoothing)
            return reduced(sizes, labels, ignore_index, reduction)

    def gradients(self, dloss, *, logits, labels, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        with np.errstate(all="ignore"):
            rows = Rows(logits, labels, ignore_index)
            rest = rows.uniform(label_smoothing) + rows.share_of_label(label_smoothing)
            slopes = slope(dloss, logits.dtype, labels, ignore_index, reduction)
            return {"logits": np.where(rows.ignored[..., None], 0, (np.exp(rows.log_p) - rest) * slopes)}

    def gradient_magnitude(self, dloss, *, logits, labels, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        """The terms, plus the effect of an exponent's roundings on the softmax."""
        with np.errstate(all="ignore"):
            rows = Rows(logits, labels, ignore_index)
            p = np.exp(rows.log_p)
            p = np.where(p == 0, 0, p * (1 + np.abs(rows.log_sum) + np.abs(rows.below)))
            rest = rows.uniform(label_smoothing) + rows.share_of_label(label_smoothing)
            slopes = np.abs(slope(dloss, logits.dtype, labels, ignore_index, reduction))
            return {"logits": np.where(rows.ignored[..., None], 0, (p + rest) * slopes)}

    def roundings(self, logits, labels, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        row = 8 + pairwise(logits.shape[-1])
        return {"loss": row + pairwise(labels.size), "dlogits": row + 4}

    bad = bad_calls(
        "cross_entropy",
        {"logits": "float32[2, 3]", "labels": "int64[2]"},
        {
            "logits must be float64, float32, float16 or bfloat16; got int32": {"logits": "int32[2, 3]"},
            "logits must have at least one dimension; got shape []": {"logits": "float32[]", "labels": "int64[]"},
            "labels must be int32 or int64; got float32": {"labels": "float32[2]"},
            "labels must have shape [2], that of the rows of logits; got [3]": {"labels": "int64[3]"},
            "labels must have shape [2], that of the rows of logits; got [2, 3]": {"labels": "int64[2, 3]"},
            "labels must have shape [2, 3], that of the rows of logits; got [2, 5]: "
            "give logits with the classes last, as [2, 5, 3]": {"logits": "float32[2, 3, 5]", "labels": "int64[2, 5]"},
            "label_smoothing must be in [0, 1]; got 1.5": {"label_smoothing": 1.5},
            "label_smoothing must be in [0, 1]; got nan": {"label_smoothing": float("nan")},
            "reduction must be one of mean, sum, none; got 'average'": {"reduction": "average"},
            "reduction must be a string; got None": {"reduction": None},
            "ignore_index must be an integer; got 0.5": {"ignore_index": 0.5},
            "labels must be a tensor; got NoneType": {"labels": None},
        },
    )


class Rows:
    """Intermediate values of the losses and their gradients, row by row."""

    def __init__(self, logits, labels, ignore_index):
        self.logits, self.classes = logits, logits.shape[-1]
        self.ignored = labels == ignore_index
        self.is_label = np.where(self.ignored, -1, labels)[..., None] == np.arange(self.classes)
        self.max = logits.max(-1, keepdims=True, initial=-np.inf)
        self.below = logits - self.max
        self.log_sum = np.log(np.exp(self.below).sum(-1, keepdims=True))
        self.log_p = self.below - self.log_sum

    def losses(self, smoothing):
        dtype = self.logits.dtype.type
        log_sum = self.log_sum[..., 0]
        loss = dtype(1 - smoothing) * (log_sum - self.of_label(self.below))
        if smoothing:
            loss = loss + dtype(smoothing) * (log_sum - self.below.mean(-1))
        return np.where(self.ignored, dtype(0), loss)

    def loss_magnitudes(self, smoothing):
        """log_sum errs by the effect of the exponents' roundings."""
        finite = np.where(np.isfinite(self.below), -self.below, 0)
        size = 1 + np.sum(np.exp(self.log_p) * finite, -1) + np.abs(self.log_sum[..., 0])
        size = size + np.abs(self.of_label(self.below))
        if smoothing:
            size = size + smoothing * finite.mean(-1)
        return np.where(self.ignored, 0, size)

    def of_label(self, values):
        return np.where(self.is_label, values, 0).sum(-1)

    def uniform(self, smoothing):
        return self.logits.dtype.type(smoothing / self.classes if self.classes else 0)

    def share_of_label(self, smoothing):
        return self.is_label * self.logits.dtype.type(1 - smoothing)


def call(shape, random, name="", dtype=np.int64, **options):
    """Every fifth row is ignored, and every row without classes."""
    labels = random.integers(max(shape[-1], 1), size=shape[:-1]).astype(dtype)
    ignored = np.arange(labels.size).reshape(labels.shape) % 5 == 4
    labels = np.where(ignored | (shape[-1] == 0), dtype(IGNORED), labels)
    return Sample({"logits": random.normal(size=shape), "labels": np.asarray(labels, dtype)}, options, name)


def slope(dloss, dtype, labels, ignore_index, reduction):
    """The factor of each row's gradient."""
    count = dtype.type(1 if reduction != "mean" else np.sum(labels != ignore_index))
    return np.asarray(dloss / count)[..., None]


def reduced(losses, labels, ignore_index, reduction):
    if reduction == "none":
        return losses
    total = losses.sum()
    return np.asarray(total if reduction == "sum" else total / losses.dtype.type(np.sum(labels != ignore_index)))


SPECIFICATION = CrossEntropy()
