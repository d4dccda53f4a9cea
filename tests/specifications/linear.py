import itertools
import math

import numpy as np

from tests.helpers.activations import ACTIVATIONS
from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pairwise, pick

NAMES = "identity, relu, gelu, gelu_tanh, silu, sigmoid, tanh"


class Linear(ProductSpecification):
    name = "linear"
    signature = "(x, weight, bias=None, activation='identity', *, transpose_weight=True)"
    shared = ("weight", "bias")

    def sample(self, shape, random):
        x, weight, bias = random.normal(size=shape), random.normal(size=(5, shape[-1])), random.normal(size=5)
        return Sample({"x": x, "weight": weight / max(1, shape[-1]) ** 0.5, "bias": bias}, {"activation": "silu"})

    def more_samples(self, random):
        for activation, transpose in itertools.product(ACTIVATIONS, (True, False)):
            options = {"activation": activation, "transpose_weight": transpose}
            weight = random.integers(-2, 3, size=(6, 9) if transpose else (9, 6)) * 1.0  # sums representable in 16 bits
            x, bias = random.integers(-2, 3, size=(2, 4, 9)) * 1.0, random.integers(-3, 3, size=6) + 0.5
            name = f"{activation}{'' if transpose else '-in-out'}"
            yield Sample({"x": x, "weight": weight, "bias": bias}, options, name=name)
            # odd sums
            x, weight = random.choice([-1.0, 1.0], size=x.shape), random.choice([-1.0, 1.0], size=weight.shape)
            yield Sample({"x": x, "weight": weight, "bias": None}, options, name=f"{name}-without-bias")
        # Around the tiles of a kernel, long sums, one row, one column.
        for m, k, n in ((1, 300, 1), (65, 129, 33), (130, 64, 136), (3, 4099, 2), (17, 1, 19), (1, 70, 40)):
            x, weight = random.normal(size=(m, k)), random.normal(size=(n, k)) / k**0.5
            inputs = {"x": x, "weight": weight, "bias": random.normal(size=n)}
            yield Sample(inputs, {"activation": "gelu_tanh"}, name=f"{m}x{k}x{n}")
        yield Sample({"x": np.ones(3), "weight": random.normal(size=(4, 3)), "bias": None}, name="a-vector")
        for m, k, n in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
            inputs = {"x": np.ones((m, k)), "weight": np.ones((n, k)), "bias": random.normal(size=n)}
            yield Sample(inputs, {"activation": "tanh"}, name=f"{m}x{k}x{n}")

    def low_curvature_sample(self, random):
        sample = self.sample((6, 32), random)
        return Sample(sample.inputs, {"activation": "identity"})

    def draw(self, shape, random):
        transpose, out = pick(random, True, False), pick(random, 1, 3, 8, 17, 64)
        options = {"activation": pick(random, *ACTIVATIONS), "transpose_weight": transpose}
        x = random.normal(size=shape)
        weight = random.normal(size=(out, shape[-1]) if transpose else (shape[-1], out)) / max(1, shape[-1]) ** 0.5
        bias = pick(random, None, random.normal(size=out))
        if options["activation"] == "relu":  # its slope is discontinuous: exact nonzero sums
            x, weight = random.integers(-1, 2, size=shape) * 1.0, np.sign(weight)
            x[..., :1] = random.choice([-0.5, 0.5], size=x[..., :1].shape)
            bias = None if bias is None else random.integers(-3, 3, size=out) * 1.0
        return Sample({"x": x, "weight": weight, "bias": bias}, options)

    def special(self, values, random):
        for activation in ACTIVATIONS:
            options = {"activation": activation}
            weight = np.array([[1.0], [-1.0]])
            yield Sample({"x": values[:, None], "weight": weight, "bias": None}, options, name=f"{activation}-x")
            inputs = {"x": np.array([[1.0], [-1.0]]), "weight": values[:, None], "bias": None}
            yield Sample(inputs, options, name=f"{activation}-weight")

    def reference(self, x, weight, bias=None, activation="identity", transpose_weight=True):
        return ACTIVATIONS[activation].value(argument(x, weight, bias, transpose_weight))

    def gradients(self, dy, *, x, weight, bias=None, activation="identity", transpose_weight=True):
        slope = ACTIVATIONS[activation].slope(argument(x, weight, bias, transpose_weight))
        dz = np.where(slope == 0, slope, dy) if activation == "relu" else dy * slope
        return through_product(dz, x, weight, bias, transpose_weight)

    def magnitude(self, x, weight, bias=None, activation="identity", transpose_weight=True):
        act = ACTIVATIONS[activation]
        u = argument(x, weight, bias, transpose_weight)
        return act.value_size(u) + act.slope_size(u) * size_of_argument(x, weight, bias, transpose_weight)

    def gradient_magnitude(self, dy, *, x, weight, bias=None, activation="identity", transpose_weight=True):
        act = ACTIVATIONS[activation]
        size = size_of_argument(x, weight, bias, transpose_weight)
        slope = act.slope_size(argument(x, weight, bias, transpose_weight)) + act.curvature * size
        sizes = [None if value is None else np.abs(value) for value in (x, weight, bias)]
        return through_product(np.abs(dy) * slope, *sizes, transpose_weight)

    def roundings(self, x, weight, bias=None, activation="identity", transpose_weight=True):
        act, k = ACTIVATIONS[activation], x.shape[-1]
        rows, out = math.prod(x.shape[:-1]), weight.shape[0 if transpose_weight else 1]
        dz = any_order(k) + 1 + act.slope_roundings
        return {
            "y": any_order(k) + 1 + act.value_roundings,
            "dx": dz + any_order(out),
            "dweight": dz + any_order(rows),
            "dbias": dz + pairwise(rows),
        }

    def storage_roundings(self, x, weight, bias=None, activation="identity", transpose_weight=True):
        """z, then dz."""
        z = activation != "identity"
        return {"dx": 2 * z, "dweight": 2 * z, "dbias": z}

    bad = bad_calls(
        "linear",
        {"x": "float32[2, 3]", "weight": "float32[4, 3]", "bias": None},
        {
            "x must be float64, float32, float16 or bfloat16; got int32": {"x": "int32[2, 3]", "weight": "int32[4, 3]"},
            "x must have at least one dimension; got shape []": "float32[]",
            "weight must have x's dtype, float32; got float16": "float16[4, 3]",
            "weight must have 2 dimensions; got shape [3]": "float32[3]",
            "weight must have 3 columns to multiply x of shape [2, 3]; got shape [3, 4]: "
            "transpose_weight=False takes [in, out]": "float32[3, 4]",
            "weight must have 3 rows to multiply x of shape [2, 3]; got shape [4, 3]: "
            "transpose_weight=True takes [out, in]": {"transpose_weight": False},
            "bias must have shape [4], the outputs of weight; got [3]": "float32[3]",
            "bias must have x's dtype, float16; got float32": {
                "x": "float16[2, 3]",
                "weight": "float16[4, 3]",
                "bias": "float32[4]",
            },
            f"activation must be one of {NAMES}; got 'swish'": "swish",
            "weight must be a tensor; got NoneType": None,
        },
    )


def product(x, weight, transpose):
    weight = weight.T if transpose else weight
    return (x[..., :, None] * weight).sum(-2)


def argument(x, weight, bias, transpose):
    z = product(x, weight, transpose)
    return z if bias is None else z + bias


def size_of_argument(x, weight, bias, transpose):
    return argument(np.abs(x), np.abs(weight), None if bias is None else np.abs(bias), transpose)


def roundings_through_product(dz, x, weight, transpose):
    """The roundings of the gradients, from those of dz."""
    classes, rows = weight.shape[0 if transpose else 1], math.prod(x.shape[:-1])
    return {"dx": dz + any_order(classes), "dweight": dz + any_order(rows), "dbias": dz + pairwise(rows)}


def through_product(dz, x, weight, bias, transpose):
    rows = math.prod(x.shape[:-1])
    flat, x = dz.reshape(rows, dz.shape[-1]), x.reshape(rows, x.shape[-1])
    dx = product(dz, weight, not transpose)
    dweight = (flat[:, :, None] * x[:, None, :]).sum(0)
    gradients = {"x": dx, "weight": dweight if transpose else dweight.T}
    return gradients if bias is None else {**gradients, "bias": flat.sum(0)}


SPECIFICATION = Linear()
