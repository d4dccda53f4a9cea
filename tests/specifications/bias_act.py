import numpy as np

from tests.helpers.activations import ACTIVATIONS
from tests.helpers.specification import Sample, Specification, bad_calls, pairwise, pick

NAMES = "identity, relu, gelu, gelu_tanh, silu, sigmoid, tanh"


class BiasAct(Specification):
    name = "bias_act"
    signature = "(x, bias=None, activation='gelu')"
    parameters = ("bias",)
    least_rank = 1

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape), "bias": random.normal(size=shape[-1:])})

    def more_samples(self, random):
        for activation in ACTIVATIONS:
            options = {"activation": activation}
            x, bias = random.normal(size=(3, 5)), random.normal(size=5)
            yield Sample({"x": x, "bias": bias}, options, name=activation)
            yield Sample({"x": x, "bias": None}, options, name=f"{activation}-without-bias")
            tails = np.linspace(-30, 30, 6 * 64).reshape(6, 64)
            yield Sample({"x": tails, "bias": random.normal(size=64)}, options, name=f"{activation}-tails")
        yield Sample({"x": np.array(0.7), "bias": None}, name="scalar")
        yield Sample({"x": random.normal(size=(20_000, 3)), "bias": random.normal(size=3)}, name="many-rows")

    def low_curvature_sample(self, random):
        x = random.choice([-4.0, 4.0], size=(6, 32))
        return Sample({"x": x, "bias": random.uniform(0, 0.1, size=32)})

    def draw(self, shape, random):
        options = {"activation": pick(random, *ACTIVATIONS)}
        absent = pick(random, {}, {"bias": None})
        return Sample({**self.sample(shape, random).inputs, **absent}, options)

    def special(self, values, random):
        for activation in ACTIVATIONS:
            yield Sample({"x": values, "bias": None}, {"activation": activation}, name=f"{activation}-without-bias")
            x = np.repeat(values[:, None], len(values), 1)
            yield Sample({"x": x, "bias": values}, {"activation": activation}, name=activation)

    def reference(self, x, bias=None, activation="gelu"):
        return ACTIVATIONS[activation].value(argument(x, bias))

    def gradients(self, dy, *, x, bias=None, activation="gelu"):
        slope = ACTIVATIONS[activation].slope(argument(x, bias))
        return summed(np.where(slope == 0, slope, dy) if activation == "relu" else dy * slope, bias)

    def magnitude(self, x, bias=None, activation="gelu"):
        act, u = ACTIVATIONS[activation], argument(x, bias)
        return act.value_size(u) * moved(u, bias, act.value_roundings)

    def gradient_magnitude(self, dy, *, x, bias=None, activation="gelu"):
        act, u = ACTIVATIONS[activation], argument(x, bias)
        return summed(np.abs(dy) * act.slope_size(u) * moved(u, bias, act.slope_roundings), bias)

    def roundings(self, x, bias=None, activation="gelu"):
        act, rows = ACTIVATIONS[activation], x.size // max(1, np.size(bias))
        product = act.slope_roundings and act.slope_roundings + 1
        return {"y": act.value_roundings + (bias is not None), "dx": product, "dbias": product + pairwise(rows)}

    bad = bad_calls(
        "bias_act",
        {"x": "float32[2, 3]", "bias": None},
        {
            "x must be float64, float32, float16 or bfloat16; got int32": "int32[2, 3]",
            "x must have at least one dimension; got shape []": {"x": "float32[]", "bias": "float32[1]"},
            "bias must have shape [3], the last dimension of x; got [2]": "float32[2]",
            "bias must have shape [3], the last dimension of x; got [1, 3]": "float32[1, 3]",
            "bias must have x's dtype, float32; got float64": "float64[3]",
            "bias must have x's dtype, bfloat16, or float32; got float16": {
                "x": "bfloat16[2, 3]",
                "bias": "float16[3]",
            },
            f"activation must be one of {NAMES}; got 'swish'": "swish",
            "activation must be a string; got None": None,
            "x must be a tensor; got NoneType": {"x": None, "bias": "float32[3]"},
        },
    )


def argument(x, bias):
    return x if bias is None else x + bias


def moved(u, bias, roundings):
    """The effect of rounding x + bias: the tails fall as e^-|u| to e^-2|u|, so up to 2 |u| more roundings."""
    return 1 if bias is None or not roundings else 1 + (1 + 2 * np.abs(u)) / roundings


def summed(dx, bias):
    if bias is None:
        return {"x": dx}
    return {"x": dx, "bias": dx.reshape(dx.size // max(1, bias.size), bias.size).sum(0)}


SPECIFICATION = BiasAct()
