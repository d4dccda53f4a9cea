import math

import numpy as np

from tests.helpers.activations import ACTIVATIONS
from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pairwise, pick
from tests.specifications.linear import NAMES, argument, size_of_argument, through_product


class GatedLinear(ProductSpecification):
    name = "gated_linear"
    signature = "(x, gate_weight, up_weight, gate_bias=None, up_bias=None, activation='silu', *, transpose_weight=True)"
    shared = ("gate_weight", "up_weight", "gate_bias", "up_bias")

    def sample(self, shape, random):
        x, size = random.normal(size=shape), max(1, shape[-1]) ** 0.5
        gate_weight, up_weight = (random.normal(size=(5, shape[-1])) / size for _ in range(2))
        gate_bias, up_bias = random.normal(size=5), random.normal(size=5)
        return call(x, gate_weight, up_weight, gate_bias, up_bias)

    def more_samples(self, random):
        for number, activation in enumerate(ACTIVATIONS):
            transpose = number % 2 == 0
            options = {"activation": activation, "transpose_weight": transpose}
            weights = (random.integers(-2, 3, size=(6, 9) if transpose else (9, 6)) / 1.0 for _ in range(2))
            x, bias = random.integers(-2, 3, size=(2, 4, 9)) * 1.0, random.integers(-3, 3, size=6) + 0.5
            yield call(x, *weights, bias, None, **options, name=activation)
        for m, k, n in ((1, 300, 1), (65, 129, 33), (130, 64, 136), (1, 70, 40)):
            weights = (random.normal(size=(n, k)) / k**0.5 for _ in range(2))
            yield call(random.normal(size=(m, k)), *weights, None, random.normal(size=n), name=f"{m}x{k}x{n}")
        weights = (random.normal(size=(4, 3)) for _ in range(2))
        yield call(np.ones(3), *weights, None, None, name="a-vector")
        for m, k, n in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
            bias = random.normal(size=n)
            yield call(np.ones((m, k)), np.ones((n, k)), np.ones((n, k)), bias, bias, name=f"{m}x{k}x{n}")

    def low_curvature_sample(self, random):
        sample = self.sample((6, 32), random)
        small = {name: value / 8 if name.endswith("weight") else value for name, value in sample.inputs.items()}
        return Sample(small, {"activation": "sigmoid"})

    def draw(self, shape, random):
        transpose, out = pick(random, True, False), pick(random, 1, 3, 8, 17, 64)
        activation = pick(random, *(name for name in ACTIVATIONS if name != "relu"))  # its slope is discontinuous
        options = {"activation": activation, "transpose_weight": transpose}
        of_weight, size = (out, shape[-1]) if transpose else (shape[-1], out), max(1, shape[-1]) ** 0.5
        weights = (random.normal(size=of_weight) / size for _ in range(2))
        biases = (pick(random, None, random.normal(size=out)) for _ in range(2))
        return call(random.normal(size=shape), *weights, *biases, **options)

    def special(self, values, random):
        one, two = np.array([[1.0]]), np.array([[1.0], [-0.5]])
        for activation in ACTIVATIONS:
            yield call(
                values[:, None], two, two[::-1].copy(), None, None, activation=activation, name=f"{activation}-x"
            )
            weights, ones = values[:, None], np.ones((len(values), 1))
            yield call(one, weights, ones, None, None, activation=activation, name=f"{activation}-gate")
            yield call(one, ones, weights, None, None, activation=activation, name=f"{activation}-up")

    def reference(self, x, gate_weight, up_weight, gate_bias=None, up_bias=None, **options):
        activation, transpose = options_of(**options)
        gate, up = argument(x, gate_weight, gate_bias, transpose), argument(x, up_weight, up_bias, transpose)
        return ACTIVATIONS[activation].value(gate) * up

    def gradients(self, dy, *, x, gate_weight, up_weight, gate_bias=None, up_bias=None, **options):
        activation, transpose = options_of(**options)
        gate, up = argument(x, gate_weight, gate_bias, transpose), argument(x, up_weight, up_bias, transpose)
        slope = ACTIVATIONS[activation].slope(gate)
        dgate = np.where(slope == 0, slope, dy * up) if activation == "relu" else dy * up * slope
        dup = dy * ACTIVATIONS[activation].value(gate)
        return self._gradients(dgate, dup, x, gate_weight, up_weight, gate_bias, up_bias, transpose)

    def magnitude(self, x, gate_weight, up_weight, gate_bias=None, up_bias=None, **options):
        act, gate, of_gate, of_up = sizes(x, gate_weight, up_weight, gate_bias, up_bias, **options)
        return (act.value_size(gate) + act.slope_size(gate) * of_gate) * of_up

    def gradient_magnitude(self, dy, *, x, gate_weight, up_weight, gate_bias=None, up_bias=None, **options):
        act, gate, of_gate, of_up = sizes(x, gate_weight, up_weight, gate_bias, up_bias, **options)
        dgate = np.abs(dy) * of_up * (act.slope_size(gate) + act.curvature * of_gate)
        dup = np.abs(dy) * (act.value_size(gate) + act.slope_size(gate) * of_gate)
        inputs = (None if v is None else np.abs(v) for v in (x, gate_weight, up_weight, gate_bias, up_bias))
        return self._gradients(dgate, dup, *inputs, options_of(**options)[1])

    def _gradients(self, dgate, dup, x, gate_weight, up_weight, gate_bias, up_bias, transpose):
        of_gate = through_product(dgate, x, gate_weight, gate_bias, transpose)
        of_up = through_product(dup, x, up_weight, up_bias, transpose)
        named = {"x": of_gate.pop("x") + of_up.pop("x")}
        return {
            **named,
            **{f"gate_{name}": value for name, value in of_gate.items()},
            **{f"up_{name}": value for name, value in of_up.items()},
        }

    def roundings(self, x, gate_weight, up_weight, gate_bias=None, up_bias=None, **options):
        activation, transpose = options_of(**options)
        act, k = ACTIVATIONS[activation], x.shape[-1]
        rows, out = math.prod(x.shape[:-1]), gate_weight.shape[0 if transpose else 1]
        factors = 2 * (any_order(k) + 1)
        of_factor = factors + act.slope_roundings + act.value_roundings + 2
        by_row, by_bias = of_factor + any_order(rows), of_factor + pairwise(rows)
        return {
            "y": factors + act.value_roundings + 1,
            "dx": of_factor + any_order(out) + 1,
            **{"dgate_weight": by_row, "dup_weight": by_row, "dgate_bias": by_bias, "dup_bias": by_bias},
        }

    def storage_roundings(self, **inputs):
        """Both factors; their gradients; and the terms of dx before they are added."""
        return {"y": 2, "dx": 4, "dgate_weight": 3, "dup_weight": 3, "dgate_bias": 3, "dup_bias": 3}

    bad = bad_calls(
        "gated_linear",
        {"x": "float32[2, 3]", "gate_weight": "float32[4, 3]", "up_weight": "float32[4, 3]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int32": {
                "x": "int32[2, 3]",
                "gate_weight": "int32[4, 3]",
                "up_weight": "int32[4, 3]",
            },
            "gate_weight must have 3 columns to multiply x of shape [2, 3]; got shape [3, 4]: "
            "transpose_weight=False takes [in, out]": dict.fromkeys(("gate_weight", "up_weight"), "float32[3, 4]"),
            "up_weight must have gate_weight's shape, [4, 3]; got [5, 3]": "float32[5, 3]",
            "up_weight must have gate_weight's dtype, float32; got float16": "float16[4, 3]",
            "up_bias must have shape [4], the outputs of up_weight; got [3]": "float32[3]",
            f"activation must be one of {NAMES}; got 'swish'": "swish",
        },
    )


def call(x, gate_weight, up_weight, gate_bias, up_bias, name="", **options):
    inputs = {"x": x, "gate_weight": gate_weight, "up_weight": up_weight, "gate_bias": gate_bias, "up_bias": up_bias}
    return Sample(inputs, options, name=name)


def options_of(activation="silu", transpose_weight=True):
    return activation, transpose_weight


def sizes(x, gate_weight, up_weight, gate_bias, up_bias, **options):
    """The activation, its argument, and the magnitudes of both factors."""
    activation, transpose = options_of(**options)
    gate = argument(x, gate_weight, gate_bias, transpose)
    of_gate = size_of_argument(x, gate_weight, gate_bias, transpose)
    return ACTIVATIONS[activation], gate, of_gate, size_of_argument(x, up_weight, up_bias, transpose)


SPECIFICATION = GatedLinear()
