import numpy as np

from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pairwise, pick
from tests.specifications.cross_entropy import IGNORED, Rows
from tests.specifications.linear import argument, roundings_through_product, size_of_argument, through_product
from tests.specifications.linear_cross_entropy import BAD_HEAD, HEAD, call, capped


class LinearLogProb(ProductSpecification):
    name = "linear_log_prob"
    signature = (
        "(x, weight, labels, bias=None, *, temperature=1.0, softcap=0.0, ignore_index=-100, entropy=False, "
        "transpose_weight=True)"
    )
    outputs: tuple[str, ...] = ("log_prob", "lse")
    compute_dtype_outputs: tuple[str, ...] = ("log_prob", "lse")
    shared = ("weight", "bias")

    def sample(self, shape, random):
        return call(shape, random, bias=True, softcap=2.0, temperature=0.7)

    def more_samples(self, random):
        yield call((4, 3, 11), random, "plain")
        yield call((11,), random, "one-row", dtype=np.int32, temperature=2.0, transpose_weight=False)
        yield call((2, 3, 11), random, "options", bias=True, softcap=1.5, temperature=0.5, transpose_weight=False)
        for classes, transpose in ((64, True), (63, False), (129, True), (1, True)):
            name = f"{classes}-classes"
            yield call((70, 5), random, name, classes=classes, bias=True, transpose_weight=transpose)
        yield call((3, 2), random, "vocabulary", classes=5_003, size=1 / 8, softcap=3.0, temperature=1.5)
        for shape, classes in (((0, 3), 4), ((3, 0), 4), ((3, 0), 65)):
            has_bias = classes > 4 or not shape[0]  # without one, [3, 0] has no gradient to compute
            yield call(shape, random, f"{shape[0]}x{shape[1]}x{classes}", classes=classes, bias=has_bias, softcap=1.0)
        sample = call((6, 4), random)
        labels = np.where(sample.inputs["labels"] == IGNORED, 3, sample.inputs["labels"])
        yield Sample({**sample.inputs, "labels": labels}, {"ignore_index": 3}, "ignored-3")

    def low_curvature_sample(self, random):
        return call((6, 32), random, bias=True, size=1 / 8)

    def draw(self, shape, random):
        options = {
            "softcap": pick(random, 0.0, 2.0),
            "temperature": pick(random, 1.0, 0.5, 3.0),
            "transpose_weight": pick(random, True, False),
        }
        classes, dtype = pick(random, 1, 3, 65), pick(random, np.int32, np.int64)
        return call(shape, random, classes=classes, dtype=dtype, bias=pick(random, True, False), **options)

    def special(self, values, random):
        labels = np.arange(len(values)) % 4
        labels[labels == 3] = IGNORED
        weight = np.array([[1.0], [-1.0], [1.0]])
        yield Sample({"x": values[:, None], "weight": weight, "labels": labels, "bias": None}, {}, "x")
        inputs = {"x": np.array([[1.0]]), "weight": values[:, None], "labels": np.array([2]), "bias": None}
        yield Sample(inputs, {}, "weight")

    def reference(self, **inputs):
        with np.errstate(all="ignore"):
            rows, _ = rows_of(**inputs)
            of_label = rows.of_label(rows.below) - rows.log_sum[..., 0]
            return tuple(
                np.where(rows.ignored, of_label.dtype.type(0), value) if name != "lse" else value
                for name, value in zip(self.outputs, (of_label, rows.lse, entropy(rows)), strict=False)
            )

    def magnitude(self, **inputs):
        """An error of the logits contributes at most twice to the log-probability, and once to the log-sum-exp."""
        with np.errstate(all="ignore"):
            rows, size = rows_of(**inputs)
            error = size.max(-1, initial=0)
            log_sum = sum_of_logs(rows) + error
            of_label = np.where(rows.ignored, 0, log_sum + np.abs(rows.of_label(rows.below)) + 2 * error)
            of_entropy = np.where(rows.ignored, 0, entropy_magnitude(rows, error))
            sizes = (of_label, np.abs(rows.max[..., 0]) + log_sum, of_entropy)
            return sizes[: len(self.outputs)]

    def gradients(self, *upstream, x, weight, labels, bias=None, transpose_weight=True, **options):
        with np.errstate(all="ignore"):
            rows, _ = rows_of(x, weight, labels, bias, transpose_weight, **options)
            dlog_prob, dlse, dentropy = per_row(rows, *upstream)
            log_p = np.where(np.exp(rows.log_p) == 0, 0, rows.log_p)
            dz = np.exp(rows.log_p) * (dlse - dlog_prob - dentropy * (entropy(rows)[..., None] + log_p))
            dz = (dz + rows.is_label * dlog_prob) * bend(x, weight, bias, transpose_weight, **options)
            return through_product(dz, x, weight, bias, transpose_weight)

    def gradient_magnitude(self, *upstream, x, weight, labels, bias=None, transpose_weight=True, **options):
        with np.errstate(all="ignore"):
            rows, size = rows_of(x, weight, labels, bias, transpose_weight, **options)
            dlog_prob, dlse, dentropy = map(np.abs, per_row(rows, *upstream))
            error = size.max(-1, keepdims=True, initial=0)
            p = np.exp(rows.log_p)
            log_p = np.where(p == 0, 0, np.abs(rows.log_p))
            of_p = sum_of_logs(rows)[..., None] + np.where(p == 0, 0, np.abs(rows.below)) + 2 * error
            of_entropy = entropy_magnitude(rows, error[..., 0])[..., None] + log_p + of_p
            dz = p * of_p * (dlse + dlog_prob + dentropy * (np.abs(entropy(rows))[..., None] + log_p))
            dz = dz + p * dentropy * of_entropy + rows.is_label * dlog_prob
            dz = dz * bend(x, weight, bias, transpose_weight, is_size=True, **options)
            sizes = [None if value is None else np.abs(value) for value in (x, weight, bias)]
            return through_product(dz, *sizes, transpose_weight)

    def roundings(self, x, weight, labels, bias=None, transpose_weight=True, **options):
        classes = weight.shape[0 if transpose_weight else 1]
        row = 10 + pairwise(classes) + any_order(x.shape[-1])
        return {
            **dict.fromkeys(self.outputs, row),
            **roundings_through_product(row + 6, x, weight, transpose_weight),
        }

    def storage_roundings(self, x, weight, labels, **options):
        """dz."""
        return {"dx": 1, "dweight": 1, "dbias": 1}

    bad = bad_calls(
        "linear_log_prob",
        HEAD,
        {
            **BAD_HEAD,
            "temperature must be a finite number above 0; got 0": 0.0,
            "temperature must be a finite number above 0; got -1": -1.0,
        },
    )


def rows_of(
    x, weight, labels, bias=None, transpose_weight=True, softcap=0.0, temperature=1.0, ignore_index=IGNORED, **_
):
    """The rows of logits, and the magnitude of each logit's error in terms of its sum's."""
    logits, _ = capped(argument(x, weight, bias, transpose_weight), softcap)
    size = size_of_argument(x, weight, bias, transpose_weight)
    factor = logits.dtype.type(1 / temperature)
    return Rows(logits * factor, labels, ignore_index), size * abs(factor)


def bend(x, weight, bias, transpose_weight, softcap=0.0, temperature=1.0, is_size=False, **_):
    """The derivative of the logits by their sums."""
    _, slope = capped(argument(x, weight, bias, transpose_weight), softcap)
    if is_size and softcap:
        slope = slope + size_of_argument(x, weight, bias, transpose_weight) / softcap
    return slope * slope.dtype.type(1 / temperature)


def per_row(rows, dlog_prob, dlse, dentropy=None):
    """Upstream gradients with one column; 0 where the row is ignored."""
    counted = [np.where(rows.ignored, 0, 0 if dy is None else dy)[..., None] for dy in (dlog_prob, dentropy)]
    return counted[0], np.asarray(dlse)[..., None], counted[1]


def entropy(rows):
    """In the kernels' order: terms of logits that are -inf are 0."""
    p = np.exp(rows.log_p)
    return rows.log_sum[..., 0] - np.sum(np.where(rows.below == -np.inf, 0, p * rows.below), -1)


def sum_of_logs(rows):
    """The magnitude of log_sum, which errs by the effect of the exponents' roundings."""
    finite = np.where(np.isfinite(rows.below), -rows.below, 0)
    return 1 + np.sum(np.exp(rows.log_p) * finite, -1) + np.abs(rows.log_sum[..., 0])


def entropy_magnitude(rows, error):
    """Terms p · log p err by those of p, relative to log p."""
    finite = np.where(np.isfinite(rows.below), -rows.below, 0)
    own = 1 + finite + np.abs(rows.log_sum) + 2 * np.asarray(error)[..., None]
    return sum_of_logs(rows) + np.asarray(error) + np.sum(np.exp(rows.log_p) * (1 + finite) * own, -1)


SPECIFICATION = LinearLogProb()
