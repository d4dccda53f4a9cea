from collections.abc import Mapping

import numpy as np

from tests.helpers.activations import ACTIVATIONS
from tests.helpers.specification import Sample, Specification, bad_calls, pick

NAMES = "identity, relu, gelu, gelu_tanh, silu, sigmoid, tanh"


class GatedAct(Specification):
    name = "gated_act"
    signature = "(gate, up=None, activation='silu')"
    short_names: Mapping[str, str] = {
        "swiglu": "(gate, up=None)",
        "geglu": "(gate, up=None, *, approximate='none')",
        "reglu": "(gate, up=None)",
    }

    def sample(self, shape, random):
        return Sample({"gate": random.normal(size=shape), "up": random.normal(size=shape)})

    def more_samples(self, random):
        for activation in ACTIVATIONS:
            options = {"activation": activation}
            gate, up = random.normal(size=(2, 3, 5))
            yield Sample({"gate": gate, "up": up}, options, name=activation)
            tails = np.linspace(-30, 30, 6 * 64).reshape(6, 64)
            yield Sample({"gate": tails, "up": random.normal(size=(6, 64))}, options, name=f"{activation}-tails")
        # Packed: whole vectors and partial ones, one row, no rows, empty rows.
        for shape in ((3, 10), (2, 3, 64), (9, 2062), (130,), (5, 2), (0, 6), (3, 0)):
            name = f"packed-{'x'.join(map(str, shape))}"
            yield Sample({"gate": random.normal(size=shape), "up": None}, name=name)

    def low_curvature_sample(self, random):
        return Sample({"gate": random.uniform(-9, -8, size=(6, 32)), "up": random.normal(size=(6, 32))})

    def draw(self, shape, random):
        options = {"activation": pick(random, *ACTIVATIONS)}
        if shape and pick(random, True, False):
            return Sample({"gate": random.normal(size=(*shape[:-1], 2 * shape[-1])), "up": None}, options)
        return Sample(self.sample(shape, random).inputs, options)

    def special(self, values, random):
        gate, up = (grid.ravel() for grid in np.meshgrid(values, values))
        for activation in ACTIVATIONS:
            options = {"activation": activation}
            yield Sample({"gate": gate, "up": up}, options, name=activation)
            yield Sample({"gate": np.concatenate([gate, up]), "up": None}, options, name=f"{activation}-packed")

    def reference(self, gate, up=None, activation="silu"):
        gate, up = halves(gate, up)
        return ACTIVATIONS[activation].value(gate) * up

    def gradients(self, dy, *, gate, up=None, activation="silu"):
        g, u = halves(gate, up)
        act = ACTIVATIONS[activation]
        slope = act.slope(g)
        dgate = np.where(slope == 0, slope, dy * u) if activation == "relu" else dy * u * slope
        return joined(dgate, dy * act.value(g), up)

    def magnitude(self, gate, up=None, activation="silu"):
        gate, up = halves(gate, up)
        return ACTIVATIONS[activation].value_size(gate) * np.abs(up)

    def gradient_magnitude(self, dy, *, gate, up=None, activation="silu"):
        g, u = halves(gate, up)
        act = ACTIVATIONS[activation]
        return joined(np.abs(dy * u) * act.slope_size(g), np.abs(dy) * act.value_size(g), up)

    def roundings(self, gate, up=None, activation="silu"):
        act = ACTIVATIONS[activation]
        value, slope = act.value_roundings + 1, act.slope_roundings + 2
        return {"y": value, "dgate": slope if up is not None else max(value, slope), "dup": value}

    bad = bad_calls(
        "gated_act",
        {"gate": "float32[2, 4]", "up": "float32[2, 4]"},
        {
            "gate must be float64, float32, float16 or bfloat16; got int64": dict.fromkeys(
                ("gate", "up"), "int64[2, 4]"
            ),
            "up must have gate's shape, [2, 4]; got [2, 3]": "float32[2, 3]",
            "up must have gate's shape, [2, 4]; got [4]": "float32[4]",
            "up must have gate's dtype, bfloat16; got float32": {"gate": "bfloat16[2, 4]"},
            "gate must have an even last dimension, as it holds up as well; got shape [2, 5]": {
                "gate": "float32[2, 5]",
                "up": None,
            },
            "gate must have at least one dimension; got shape []": {"gate": "float32[]", "up": None},
            f"activation must be one of {NAMES}; got 'swiglu'": "swiglu",
            "activation must be a string; got 1": 1,
            "gate must be a tensor; got NoneType": None,
        },
    )


def halves(gate, up):
    return (gate, up) if up is not None else np.split(gate, 2, -1)


def joined(dgate, dup, up):
    return {"gate": dgate, "up": dup} if up is not None else {"gate": np.concatenate([dgate, dup], -1)}


SPECIFICATION = GatedAct()
