import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pairwise, pick
from tests.specifications.cross_entropy import IGNORED
from tests.specifications.linear import argument, roundings_through_product, size_of_argument, through_product


class LinearKlDiv(ProductSpecification):
    name = "linear_kl_div"
    signature = (
        "(x, weight, target_x, target_weight, bias=None, target_bias=None, *, labels=None, beta=0.0, temperature=1.0, "
        "ignore_index=-100, reduction='mean', transpose_weight=True)"
    )
    outputs = ("loss",)
    compute_dtype_outputs = ("loss",)
    shared = ("weight", "target_weight", "bias", "target_bias")
    not_differentiable = ("target_x", "target_weight", "target_bias")
    row_options: Mapping[str, Any] = {"reduction": "none"}

    def sample(self, shape, random):
        return call(shape, random, bias=True, reduction="none", beta=0.5, temperature=0.7)

    def more_samples(self, random):
        for number, reduction in enumerate(("mean", "sum", "none")):
            for beta in (0.0, 0.25, 1.0):
                options = {"reduction": reduction, "beta": beta, "transpose_weight": bool(number % 2) != bool(beta)}
                yield call((4, 3, 11), random, f"{reduction}-{beta}", bias=bool(beta), **options)
        yield call((11,), random, "one-row", labels=None, temperature=2.0)
        yield call((5, 4), random, "no-labels", labels=None, beta=0.5)
        yield call((5, 4), random, "int32", labels=np.int32, ignore_index=3, reduction="sum")
        # Around the 64 columns that block sizes are multiples of.
        for classes, beta in ((64, 0.0), (63, 1.0), (129, 0.75), (1, 0.5)):
            yield call((70, 5), random, f"{classes}-classes", classes=classes, bias=True, beta=beta)
        yield call((3, 2), random, "vocabulary", classes=5_003, size=1 / 8, beta=0.1, temperature=1.5, reduction="sum")
        # Probabilities around the least numbers of float32 and float64, in equal heads and in others.
        far = -np.array([[0.0], [85], [88], [100], [103.4], [103.5], [104], [708], [744.5], [745], [746]])
        for beta in (0.1, 0.5, 0.9):
            inputs = {"x": np.ones((2, 1)), "weight": far, "target_x": np.array([[1.0], [0.99]]), "target_weight": far}
            yield Sample(inputs, {"beta": beta, "reduction": "none"}, f"far-{beta}")
        for shape, classes in (((0, 3), 4), ((3, 0), 4)):
            options = {"reduction": "sum", "bias": True, "beta": 0.5}
            yield call(shape, random, f"{shape[0]}x{shape[1]}x{classes}", classes=classes, **options)

    def low_curvature_sample(self, random):
        return call((6, 32), random, bias=True, reduction="none", size=1 / 8)

    def draw(self, shape, random):
        options = {
            "beta": pick(random, 0.0, 0.25, 1.0),
            "temperature": pick(random, 1.0, 0.5, 3.0),
            "reduction": pick(random, "sum", "none"),
            "transpose_weight": pick(random, True, False),
        }
        labels = pick(random, None, np.int32, np.int64)
        return call(
            shape, random, classes=pick(random, 1, 3, 65), bias=pick(random, True, False), labels=labels, **options
        )

    def special(self, values, random):
        weight, target_x = np.array([[1.0], [-1.0], [1.0]]), np.linspace(-1, 1, len(values))[:, None]
        for beta in (0.0, 0.5, 1.0):
            options = {"reduction": "none", "beta": beta}
            inputs = {"x": values[:, None], "weight": weight, "target_x": target_x, "target_weight": weight}
            yield Sample(inputs, options, f"x-{beta}")
            inputs = {**inputs, "x": target_x, "target_x": values[:, None]}
            yield Sample(inputs, options, f"target-{beta}")

    def reference(self, **inputs):
        with np.errstate(all="ignore"):
            heads = Heads(**inputs)
            return heads.reduced(heads.losses())

    def magnitude(self, **inputs):
        with np.errstate(all="ignore"):
            heads = Heads(**inputs)
            return heads.reduced(heads.loss_magnitudes())

    def gradients(self, dloss, *, x, weight, bias=None, transpose_weight=True, **others):
        with np.errstate(all="ignore"):
            heads = Heads(x, weight, bias=bias, transpose_weight=transpose_weight, **others)
            return through_product(heads.gradient(dloss), x, weight, bias, transpose_weight)

    def gradient_magnitude(self, dloss, *, x, weight, bias=None, transpose_weight=True, **others):
        with np.errstate(all="ignore"):
            heads = Heads(x, weight, bias=bias, transpose_weight=transpose_weight, **others)
            sizes = [None if value is None else np.abs(value) for value in (x, weight, bias)]
            return through_product(heads.gradient_magnitude(dloss), *sizes, transpose_weight)

    def roundings(self, x, weight, target_x, transpose_weight=True, **options):
        classes = weight.shape[0 if transpose_weight else 1]
        row = 12 + pairwise(classes) + any_order(max(x.shape[-1], target_x.shape[-1]))
        rows = math.prod(x.shape[:-1])
        return {
            "loss": row + pairwise(rows),
            **roundings_through_product(row + 6, x, weight, transpose_weight),
        }

    def storage_roundings(self, reduction="mean", **options):
        """dz, and the gradients that are multiplied by the upstream gradient."""
        count = 1 if reduction == "none" else 2
        return {"dx": count, "dweight": count, "dbias": count}

    bad = bad_calls(
        "linear_kl_div",
        {
            "x": "float32[2, 3]",
            "weight": "float32[4, 3]",
            "target_x": "float32[2, 5]",
            "target_weight": "float32[4, 5]",
            "bias": None,
            "target_bias": None,
        },
        {
            "weight must have 3 columns to multiply x of shape [2, 3]; got shape [3, 4]: "
            "transpose_weight=False takes [in, out]": "float32[3, 4]",
            "target_x must have x's dtype, float32; got float64": "float64[2, 5]",
            "target_x must have rows of shape [2], as x has; got [3]": "float32[3, 5]",
            "target_weight must have 5 columns to multiply target_x of shape [2, 5]; got shape [4, 3]": "float32[4, 3]",
            "target_weight must have 4 classes, as weight has; got 6": "float32[6, 5]",
            "target_bias must have shape [4], the outputs of target_weight; got [5]": "float32[5]",
            "labels must have shape [2], that of the rows of x; got [3]": "int64[3]",
            "beta must be in [0, 1]; got 1.5": 1.5,
            "temperature must be a finite number above 0; got 0": 0.0,
            "reduction must be one of mean, sum, none; got 'batchmean'": "batchmean",
        },
    )


class Heads:
    """Intermediate values of the divergences and their gradients, row by row, and the errors of the logits."""

    def __init__(
        self,
        x,
        weight,
        target_x,
        target_weight,
        bias=None,
        target_bias=None,
        labels=None,
        beta=0.0,
        temperature=1.0,
        ignore_index=IGNORED,
        reduction="mean",
        transpose_weight=True,
    ):
        self.reduction, self.beta = reduction, x.dtype.type(beta)
        self.factor = x.dtype.type(1 / temperature)
        heads = (x, weight, bias, transpose_weight), (target_x, target_weight, target_bias, transpose_weight)
        (self.log_p, self.p, size_p), (self.log_q, self.q, size_q) = (self.probabilities(*head) for head in heads)
        self.counts = np.broadcast_to(True if labels is None else labels != ignore_index, self.p.shape[:-1])
        if beta in (0.0, 1.0):
            self.log_m, self.size_m = (self.log_p, size_p) if beta == 0.0 else (self.log_q, size_q)
        else:
            self.log_m = np.logaddexp(np.log(self.beta) + self.log_q, np.log(1 - self.beta) + self.log_p)
            self.size_m = 1 + np.where(np.isfinite(self.log_m), np.abs(self.log_m), 0) + size_p + size_q
        self.of_target, self.of_model = {0.0: (1, 0), 1.0: (0, 1)}.get(beta, (self.beta, 1 - self.beta))
        self.size_p, self.size_q = size_p, size_q

    def probabilities(self, *head):
        """The logarithms of the probabilities, the probabilities, and the magnitude of the logarithms' errors."""
        z, size = argument(*head) * self.factor, size_of_argument(*head) * abs(self.factor)
        below = z - z.max(-1, keepdims=True, initial=-np.inf)
        log_p = below - np.log(np.exp(below).sum(-1, keepdims=True))
        p = np.exp(log_p)
        finite = np.where(np.isfinite(below), -below, 0)
        of_sum = 1 + np.sum(p * finite, -1, keepdims=True) + 2 * size.max(-1, keepdims=True, initial=0)
        return log_p, p, of_sum + 2 * finite + np.where(np.isfinite(log_p), np.abs(log_p), 0)

    @staticmethod
    def term(p, log):
        return np.where(p == 0, p, p * log)

    def of_rows(self):
        """The terms' sums: KL(q || m) and KL(p || m)."""
        return self.term(self.q, self.log_q - self.log_m).sum(-1), self.term(self.p, self.log_p - self.log_m).sum(-1)

    def losses(self):
        target, model = self.of_rows()
        return np.where(self.counts, self.of_target * target + self.of_model * model, target.dtype.type(0))

    def sizes(self):
        """The magnitudes of KL(q || m) and KL(p || m): the logarithms err, and a term's probability, too."""
        sizes = []
        for probability, log, size in ((self.q, self.log_q, self.size_q), (self.p, self.log_p, self.size_p)):
            ratio = np.where(probability == 0, 0, np.abs(log - self.log_m))
            sizes.append(np.sum(self.term(probability, size + self.size_m + ratio * (1 + size)), -1))
        return sizes

    def loss_magnitudes(self):
        target, model = self.sizes()
        return np.where(self.counts, self.of_target * target + self.of_model * model, 0)

    def gradient(self, dloss):
        _, model = self.of_rows()
        dz = self.p - self.q
        if self.beta != 0:
            dz = self.of_model * self.term(self.p, self.log_p - self.log_m - model[..., None])
        return np.where(self.counts[..., None], dz * self.slope(dloss), dz.dtype.type(0))

    def gradient_magnitude(self, dloss):
        _, model = self.of_rows()
        _, of_model = self.sizes()
        dz = self.term(self.p, 1 + self.size_p) + self.term(self.q, 1 + self.size_q)
        if self.beta != 0:
            ratio = np.where(self.p == 0, 0, np.abs(self.log_p - self.log_m - model[..., None]))
            own = self.size_p + self.size_m + of_model[..., None] + ratio * (1 + self.size_p)
            dz = self.of_model * self.term(self.p, own)
        return np.where(self.counts[..., None], dz * np.abs(self.slope(dloss)), 0)

    def reduced(self, losses):
        if self.reduction == "none":
            return losses
        total = losses.sum()
        return np.asarray(total if self.reduction == "sum" else total / self.p.dtype.type(self.counts.sum()))

    def slope(self, dloss):
        """The factor of each row's gradient."""
        dloss = np.asarray(dloss / self.p.dtype.type(self.counts.sum()) if self.reduction == "mean" else dloss)
        return dloss[..., None] * self.factor


def call(shape, random, name="", classes=7, bias=False, labels=np.int64, size=1.0, **options):
    """Every fourth row is ignored, if there are labels. The target has other features."""
    transpose = options.get("transpose_weight", True)

    def head(depth):
        x, scale = size * random.normal(size=(*shape[:-1], depth)), max(1, depth) ** 0.5
        weight = random.normal(size=(classes, depth) if transpose else (depth, classes)) / scale
        return x, weight, random.normal(size=classes) if bias else None

    (x, weight, own_bias), (target_x, target_weight, target_bias) = head(shape[-1]), head(shape[-1] + 2)
    inputs = {"x": x, "weight": weight, "target_x": target_x, "target_weight": target_weight}
    inputs |= {"bias": own_bias, "target_bias": target_bias}
    if labels is not None:
        rows = np.arange(math.prod(shape[:-1])).reshape(shape[:-1])
        inputs["labels"] = np.where(rows % 4 == 3, options.get("ignore_index", IGNORED), 0).astype(labels)
    return Sample(inputs, options, name)


SPECIFICATION = LinearKlDiv()
