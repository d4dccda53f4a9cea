from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pairwise, pick
from tests.specifications.cross_entropy import IGNORED, Rows, class_weights, without_empty_mean
from tests.specifications.linear import argument, roundings_through_product, size_of_argument, through_product

# A call of a loss over the logits of a linear head, and changes of it that are errors.
HEAD = {"x": "float32[2, 3]", "weight": "float32[4, 3]", "labels": "int64[2]"}
BAD_HEAD = {
    "x must be float64, float32, float16 or bfloat16; got int32": {"x": "int32[2, 3]", "weight": "int32[4, 3]"},
    "weight must have 3 columns to multiply x of shape [2, 3]; got shape [3, 4]: "
    "transpose_weight=False takes [in, out]": "float32[3, 4]",
    "bias must have shape [4], the outputs of weight; got [3]": "float32[3]",
    "labels must be int32 or int64; got float32": "float32[2]",
    "labels must have shape [2], that of the rows of x; got [3]": "int64[3]",
    "softcap must be a finite number, at least 0; got -1": -1.0,
}


class LinearCrossEntropy(ProductSpecification):
    name = "linear_cross_entropy"
    signature = (
        "(x, weight, labels, bias=None, *, ignore_index=-100, label_smoothing=0.0, reduction='mean', softcap=0.0, "
        "transpose_weight=True, class_weight=None, z_loss=0.0)"
    )
    outputs = ("loss",)
    compute_dtype_outputs = ("loss",)
    shared = ("weight", "bias", "class_weight")
    not_differentiable = ("class_weight",)
    row_options: Mapping[str, Any] = {"reduction": "none"}

    def sample(self, shape, random):
        return call(shape, random, bias=True, reduction="none", softcap=2.0)

    def more_samples(self, random):
        for number, reduction in enumerate(("mean", "sum", "none")):
            for smoothing in (0.0, 0.1):
                options = {"reduction": reduction, "label_smoothing": smoothing, "softcap": 1.5 * (number % 2)}
                options["transpose_weight"] = bool(number % 2) != bool(smoothing)
                yield call((4, 3, 11), random, f"{reduction}-{smoothing}", bias=bool(smoothing), **options)
                yield call((11,), random, f"{reduction}-{smoothing}-one-row", dtype=np.int32, **options)
            options = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 1.5}
            yield call((4, 3, 11), random, f"{reduction}-weighted-z", bias=True, weighted=True, **options)
            yield call((5, 11), random, f"{reduction}-weighted", weighted=True, reduction=reduction)
        # Around the 64 columns that block sizes are multiples of, and several tiles, with gradients in float16's range.
        for classes, transpose in ((64, True), (63, False), (129, True), (1, True)):
            name = f"{classes}-classes"
            yield call((70, 5), random, name, classes=classes, bias=True, transpose_weight=transpose)
        for transpose in (True, False):
            options = {"label_smoothing": 0.1, "softcap": 3.0, "reduction": "sum", "transpose_weight": transpose}
            yield call((3, 2), random, f"vocabulary-{transpose}", classes=5_003, size=1 / 8, weighted=True, **options)
        for shape, classes in (((0, 3), 4), ((3, 0), 4), ((3, 0), 65)):
            options = {"reduction": "sum", "bias": True, "softcap": 1.0}
            yield call(shape, random, f"{shape[0]}x{shape[1]}x{classes}", classes=classes, **options)
        yield call((3, 4), random, "no-classes", classes=0, ignored=3, reduction="sum", bias=True)
        for ignore_index in (0, 3, -1):
            sample = call((6, 4), random, reduction="sum")
            labels = np.where(sample.inputs["labels"] == IGNORED, ignore_index, sample.inputs["labels"])
            options = {"ignore_index": ignore_index, "reduction": "sum"}
            yield Sample({**sample.inputs, "labels": labels}, options, f"ignored-{ignore_index}")

    def low_curvature_sample(self, random):
        return call((6, 32), random, bias=True, reduction="none", size=1 / 8)

    def draw(self, shape, random):
        options = {
            "label_smoothing": pick(random, 0.0, 0.1, 1.0),
            "reduction": pick(random, "mean", "sum", "none"),
            "softcap": pick(random, 0.0, 2.0),
            "transpose_weight": pick(random, True, False),
        }
        options["z_loss"] = pick(random, 0.0, 1e-2)
        classes, dtype = pick(random, 1, 3, 65), pick(random, np.int32, np.int64)
        inputs = {"bias": pick(random, True, False), "weighted": pick(random, True, False)}
        return without_empty_mean(call(shape, random, classes=classes, dtype=dtype, **inputs, **options))

    def special(self, values, random):
        labels = np.arange(len(values)) % 4
        labels[labels == 3] = IGNORED
        weight = np.array([[1.0], [-1.0], [1.0]])
        for smoothing in (0.0, 0.25):
            inputs = {"x": values[:, None], "weight": weight, "labels": labels, "bias": None}
            yield Sample(inputs, {"reduction": "none", "label_smoothing": smoothing}, f"x-{smoothing}")
        inputs = {"x": np.array([[1.0]]), "weight": values[:, None], "labels": np.array([2]), "bias": None}
        yield Sample(inputs, {"reduction": "none"}, "weight")

    def reference(self, x, weight, labels, bias=None, softcap=0.0, transpose_weight=True, **options):
        with np.errstate(all="ignore"):
            logits, _ = capped(argument(x, weight, bias, transpose_weight), softcap)
            rows = Rows(logits, labels, **options)
            return rows.reduced(rows.losses())

    def magnitude(self, x, weight, labels, bias=None, softcap=0.0, transpose_weight=True, **options):
        """The magnitude of the loss, to which an error of the logits contributes at most twice."""
        with np.errstate(all="ignore"):
            logits, _ = capped(argument(x, weight, bias, transpose_weight), softcap)
            rows = Rows(logits, labels, **options)
            of_sums = size_of_argument(x, weight, bias, transpose_weight).max(-1, initial=0)
            return rows.reduced(rows.loss_magnitudes(of_sums))

    def gradients(self, dloss, *, x, weight, labels, bias=None, transpose_weight=True, **options):
        with np.errstate(all="ignore"):
            dz = self.of_sums(dloss, argument(x, weight, bias, transpose_weight), labels, **options)
            return through_product(dz, x, weight, bias, transpose_weight)

    def of_sums(self, dloss, sums, labels, softcap=0.0, size=None, **options):
        """The gradient of the sums; with the `size` of the terms of the sums, the magnitude of that gradient."""
        logits, bend = capped(sums, softcap)
        rows = Rows(logits, labels, **options)
        if size is None:
            return rows.gradient(dloss) * bend
        bends = bend + (size / softcap if softcap else 0)
        return rows.gradient_magnitude(dloss, size.max(-1)) * bends

    def gradient_magnitude(self, dloss, *, x, weight, labels, bias=None, transpose_weight=True, **options):
        with np.errstate(all="ignore"):
            sums, size = (each(x, weight, bias, transpose_weight) for each in (argument, size_of_argument))
            dz = self.of_sums(dloss, sums, labels, **options, size=size) if sums.size else sums
            sizes = [None if value is None else np.abs(value) for value in (x, weight, bias)]
            return through_product(dz, *sizes, transpose_weight)

    def roundings(self, x, weight, labels, bias=None, transpose_weight=True, **options):
        classes = weight.shape[0 if transpose_weight else 1]
        row = 8 + pairwise(classes) + any_order(x.shape[-1])
        return {
            "loss": row + pairwise(labels.size),
            **roundings_through_product(row + 4, x, weight, transpose_weight),
        }

    def storage_roundings(self, x, weight, labels, reduction="mean", **options):
        """dz, and the gradients that are multiplied by the upstream gradient."""
        count = 1 if reduction == "none" else 2
        return {"dx": count, "dweight": count, "dbias": count}

    bad = bad_calls(
        "linear_cross_entropy",
        HEAD,
        {
            **BAD_HEAD,
            "labels must have shape [2, 5], that of the rows of x; got [2, 3]: "
            "give x with the features last, as [2, 3, 5]": {"x": "float32[2, 5, 3]", "labels": "int64[2, 3]"},
            "label_smoothing must be in [0, 1]; got -0.5": -0.5,
            "z_loss must be a finite number, at least 0; got inf": float("inf"),
            "class_weight must be float32; got float16": "float16[4]",
            "class_weight must have shape [4], one number for each class; got [3]": "float32[3]",
            "reduction must be one of mean, sum, none; got 'average'": "average",
            "labels must be a tensor; got NoneType": None,
        },
    )


def call(shape, random, name="", classes=7, bias=False, ignored=5, dtype=np.int64, size=1.0, weighted=False, **options):
    """Every `ignored`th row is ignored, and every row without classes."""
    x, depth = size * random.normal(size=shape), max(1, shape[-1]) ** 0.5
    transpose = options.get("transpose_weight", True)
    weight = random.normal(size=(classes, shape[-1]) if transpose else (shape[-1], classes)) / depth
    labels = random.integers(max(classes, 1), size=shape[:-1]).astype(dtype)
    is_ignored = np.arange(labels.size).reshape(labels.shape) % ignored == ignored - 1
    labels = np.asarray(np.where(is_ignored | (classes == 0), dtype(IGNORED), labels), dtype)
    inputs = {"x": x, "weight": weight, "labels": labels, "bias": random.normal(size=classes) if bias else None}
    if weighted:
        inputs["class_weight"] = class_weights(random, classes)
    return Sample(inputs, options, name)


def capped(sums, cap):
    """The logits, and their slope."""
    if not cap:
        return sums, np.ones_like(sums)
    tanh = np.tanh(sums / sums.dtype.type(cap))
    return sums.dtype.type(cap) * tanh, 1 - tanh * tanh


SPECIFICATION = LinearCrossEntropy()
