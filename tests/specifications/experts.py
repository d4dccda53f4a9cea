from dataclasses import dataclass

import numpy as np

from tests.helpers.activations import ACTIVATIONS
from tests.helpers.specification import ProductSpecification, Sample, absolute, any_order, bad_calls, pick
from tests.specifications.linear import NAMES

GPT_OSS = {"interleaved": True, "transpose_weight": False, "limit": 1.5, "alpha": 1.702, "shift": 1.0}


class Experts(ProductSpecification):
    name = "experts"
    signature = (
        "(x, index, weight, gate_up, down, *, activation='silu', gate_up_bias=None, down_bias=None, "
        "transpose_weight=True, interleaved=False, limit=0.0, alpha=1.0, shift=0.0)"
    )
    shared = ("gate_up", "down", "gate_up_bias", "down_bias")
    contiguous = ("weight", "gate_up_bias", "down_bias")

    def sample(self, shape, random):
        """Intermediate values of any x are within float16: gates and ups by the weights' sizes, gated values by the
        limit, which no ordinary number reaches."""
        sample = call(random, shape, experts=7, size=5, out=12, biases=True, limit=50.0)
        gate_up = random.uniform(-1, 1, sample.inputs["gate_up"].shape) / max(1, shape[-1])
        return Sample({**sample.inputs, "gate_up": gate_up}, sample.options)

    def more_samples(self, random):
        for number, activation in enumerate(ACTIVATIONS):
            options = {"activation": activation, "transpose_weight": number % 2 == 0, "interleaved": number % 3 == 0}
            yield call(random, (2, 4, 6), activation, exact=True, biases=number % 2 == 1, **options)
        yield call(random, (9, 6), "gpt-oss", exact=True, biases=True, **GPT_OSS)
        yield call(random, (7,), "a-vector", dtype=np.int32)
        yield call(random, (70, 33), "tiles", size=65, out=40, per_token=3, experts=2)
        yield call(random, (5, 3), "many-experts", experts=40, per_token=1)
        yield call(random, (3, 4), "no-expert-of-a-token", per_token=0)
        yield call(random, (3, 4), "no-experts", experts=0)
        for name, shape, size in (("no-tokens", (0, 4), 3), ("no-columns", (3, 0), 3), ("no-units", (3, 4), 0)):
            yield call(random, shape, name, size=size, biases=True)

    def low_curvature_sample(self, random):
        sample = call(random, (6, 32), biases=True, activation="sigmoid")
        return Sample({k: v if k in ("x", "index") else v / 8 for k, v in sample.inputs.items()}, sample.options)

    def draw(self, shape, random):
        options = {
            "activation": pick(random, *(name for name in ACTIVATIONS if name != "relu")),  # its slope is discontinuous
            "transpose_weight": pick(random, True, False),
            "interleaved": pick(random, True, False),
            "alpha": pick(random, 1.0, 1.702),
            "shift": pick(random, 0.0, 1.0),
        }
        sizes = {"experts": pick(random, 1, 3, 17), "per_token": pick(random, 1, 2, 5), "size": pick(random, 1, 8, 33)}
        dtype = pick(random, np.int32, np.int64)
        return call(random, shape, biases=pick(random, True, False), dtype=dtype, **sizes, **options)

    def special(self, values, random):
        index, weight = np.zeros((len(values), 1), np.int64), np.ones((len(values), 1))
        gate_up, down = np.ones((1, 2, 1)), np.ones((1, 1, 1))
        for name in ("silu", "relu", "tanh"):
            inputs = {"x": values[:, None], "index": index, "weight": weight, "gate_up": gate_up, "down": down}
            yield Sample({**inputs, "gate_up_bias": None, "down_bias": None}, {"activation": name}, name)

    def reference(self, **inputs):
        return Layer.of(**inputs).value()

    def gradients(self, dy, **inputs):
        return Layer.of(**inputs).gradients(dy)

    def magnitude(self, **inputs):
        return Layer.of(**inputs).magnitude()

    def gradient_magnitude(self, dy, **inputs):
        return Layer.of(**inputs).gradient_magnitude(dy)

    def roundings(self, **inputs):
        layer = Layer.of(**inputs)
        rows = layer.index.size
        act, per_token = ACTIVATIONS[layer.options["activation"]], layer.index.shape[-1]
        h = any_order(layer.x.shape[-1]) + 1 + act.value_roundings + 4
        dz = h + any_order(layer.down.shape[1]) + act.slope_roundings + 3
        return {
            "y": h + any_order(layer.down.shape[2]) + 1 + any_order(per_token),
            "dx": dz + any_order(layer.gate_up.shape[1]) + any_order(per_token),
            "dweight": dz + any_order(layer.down.shape[2]) + any_order(layer.down.shape[1]) + 1,
            "dgate_up": dz + any_order(rows),
            "ddown": h + 1 + any_order(rows),
            "dgate_up_bias": dz + any_order(rows),
            "ddown_bias": any_order(rows),
        }

    def storage_roundings(self, **inputs):
        """Gates, ups, gated values and results; in the backward gates, ups, dh, dz, and the terms of dx or weighted
        gated values."""
        return {
            "y": 4,
            "dx": 5,
            "dweight": 3,
            "dgate_up": 4,
            "ddown": 3,
            "dgate_up_bias": 4,
        }

    bad = bad_calls(
        "experts",
        {
            "x": "float32[5, 3]",
            "index": "int64[5, 2]",
            "weight": "float32[5, 2]",
            "gate_up": "float32[4, 6, 3]",
            "down": "float32[4, 3, 3]",
        },
        {
            "x must have at least one dimension; got shape []": "float32[]",
            "index must be int32 or int64; got float32": "float32[5, 2]",
            "index must have shape [5, K], the leading dimensions of x and the experts of a token; got [4, 2]": {
                "index": "int64[4, 2]"
            },
            "weight must have index's shape, [5, 2]; got [5, 3]": "float32[5, 3]",
            "weight must have x's dtype, float32; got float16": "float16[5, 2]",
            "gate_up must have x's dtype, float32; got float16": "float16[4, 6, 3]",
            "gate_up must have shape [E, out, 3]; got [4, 6, 2]": "float32[4, 6, 2]",
            "gate_up must have shape [E, 3, out]; got [4, 6, 3]": {"transpose_weight": False},
            "gate_up must have an even number of outputs, gates and ups; got shape [4, 5, 3]": "float32[4, 5, 3]",
            "down must have shape [E, out, 3]; got [4, 3, 6]": "float32[4, 3, 6]",
            "down must have gate_up's number of experts, 4; got shape [3, 3, 3]": "float32[3, 3, 3]",
            "gate_up_bias must have shape [4, 6], the outputs of gate_up; got [6]": "float32[6]",
            "down_bias must have shape [4, 3], the outputs of down; got [4, 2]": "float32[4, 2]",
            "limit must be a finite number, at least 0; got -1": -1.0,
            "alpha must be a finite number above 0; got -1": -1.0,
            f"activation must be one of {NAMES}; got 'swish'": "swish",
        },
    )


def call(
    random,
    shape,
    name="",
    *,
    experts=4,
    per_token=2,
    size=3,
    out=5,
    biases=False,
    exact=False,
    dtype=np.int64,
    **options,
):
    """A call with some indexes on both sides of [0, experts). `exact`: gates and ups are representable in 16 bits and
    no limit or bend of an activation is near."""
    columns, transpose = shape[-1], options.get("transpose_weight", True)

    def numbers(*sizes, scale=1.0):
        return random.integers(-2, 3, size=sizes) * 1.0 if exact else random.normal(size=sizes) * scale

    gate_up, down = numbers(experts, 2 * size, columns), numbers(experts, out, size)
    if not exact:
        gate_up, down = gate_up / max(1, columns) ** 0.5, down / max(1, size) ** 0.5
    inputs = {
        "x": numbers(*shape),
        "index": random.integers(-1, experts + 1, size=(*shape[:-1], per_token)).astype(dtype),
        "weight": random.normal(size=(*shape[:-1], per_token)),
        "gate_up": gate_up if transpose else gate_up.swapaxes(1, 2).copy(),
        "down": down if transpose else down.swapaxes(1, 2).copy(),
        "gate_up_bias": random.integers(-3, 3, size=(experts, 2 * size)) + 0.25 if biases else None,
        "down_bias": random.normal(size=(experts, out)) if biases else None,
    }
    return Sample(inputs, options, name)


@dataclass
class Layer:
    """Every slot's own expert: weights are gathered by the index, with zeros for one out of range."""

    x: np.ndarray  # [..., 1, in]
    index: np.ndarray  # [..., K]
    weight: np.ndarray
    gate_up: np.ndarray  # [E, 2F, in], gates first
    down: np.ndarray  # [E, out, F]
    gate_up_bias: np.ndarray | None
    down_bias: np.ndarray | None
    options: dict

    @staticmethod
    def of(x, index, weight, gate_up, down, gate_up_bias=None, down_bias=None, **options):
        defaults = {"transpose_weight": True, "interleaved": False, "limit": 0.0, "alpha": 1.0, "shift": 0.0}
        options = {"activation": "silu", **defaults, **options}
        if not options["transpose_weight"]:
            gate_up, down = gate_up.swapaxes(1, 2), down.swapaxes(1, 2)
        if options["interleaved"]:
            gate_up, gate_up_bias = (None if v is None else _apart(v) for v in (gate_up, gate_up_bias))
        return Layer(x[..., None, :], index, weight, gate_up, down, gate_up_bias, down_bias, options)

    def absolute(self):
        fields = absolute({name: value for name, value in vars(self).items() if name != "options"})
        return Layer(**fields, options=self.options)

    def of_slots(self, table):
        """table[index], 0 for an index out of range."""
        has_expert = (self.index >= 0) & (self.index < len(table))
        if not len(table):
            return np.zeros((*self.index.shape, *table.shape[1:]), table.dtype)
        found = table[np.where(has_expert, self.index, 0)]
        return np.where(has_expert.reshape(*self.index.shape, *[1] * (table.ndim - 1)), found, 0)

    def by_expert(self, of_slots):
        """The sums of the slots' gradients over each expert's slots."""
        sums = np.zeros((len(self.gate_up), *of_slots.shape[self.index.ndim :]), of_slots.dtype)
        for expert in range(len(sums)):
            sums[expert] = of_slots[self.index == expert].sum(0)
        return sums

    def has_expert(self):
        return ((self.index >= 0) & (self.index < len(self.gate_up)))[..., None]

    def gates(self):
        z = (self.of_slots(self.gate_up) * self.x[..., None, :]).sum(-1)
        if self.gate_up_bias is not None:
            z = z + self.of_slots(self.gate_up_bias)
        return np.split(z, 2, -1)

    def clamped(self):
        """Gates and ups within the limit, and 1 where they were there already, else 0."""
        (gate, up), limit = self.gates(), self.options["limit"]
        if not limit:
            return gate, up, np.ones_like(gate), np.ones_like(up)
        return np.minimum(gate, limit), np.clip(up, -limit, limit), 1 * (gate <= limit), 1 * (np.abs(up) <= limit)

    def activated(self, gate):
        act, alpha = ACTIVATIONS[self.options["activation"]], gate.dtype.type(self.options["alpha"])
        return act.value(alpha * gate) / alpha, act.slope(alpha * gate)

    def results(self, h):
        results = (self.of_slots(self.down) * h[..., None, :]).sum(-1)
        return results if self.down_bias is None else results + self.of_slots(self.down_bias)

    def value(self):
        gate, up, _, _ = self.clamped()
        h = self.activated(gate)[0] * (up + gate.dtype.type(self.options["shift"]))
        weighted = self.weight[..., None] * self.results(h)
        return np.where(self.has_expert(), weighted, 0).sum(-2)

    def sizes(self):
        """The sizes of the activated gate, of its slope, and of the shifted up, with their errors from those of z."""
        act, alpha, (gate, _, _, _) = ACTIVATIONS[self.options["activation"]], self.options["alpha"], self.clamped()
        of_gate, of_up = self.absolute().gates()
        slope = act.slope_size(alpha * gate)
        value = act.value_size(alpha * gate) / alpha + slope * of_gate
        return value, slope + alpha * act.curvature * of_gate, of_up + abs(self.options["shift"])

    def magnitude(self):
        value, _, up = self.sizes()
        mine = self.absolute()
        return (mine.weight[..., None] * mine.results(value * up)).sum(-2)

    def gradients(self, dy):
        gate, up, gate_passes, up_passes = self.clamped()
        value, slope = self.activated(gate)
        up = up + gate.dtype.type(self.options["shift"])
        return self._pulled_back(dy, value, slope * gate_passes, up, value * up_passes)

    def gradient_magnitude(self, dy):
        value, slope, up = self.sizes()
        return self.absolute()._pulled_back(np.abs(dy), value, slope, up, value)

    def _pulled_back(self, dy, value, slope, up, of_up):
        dy = np.where(self.has_expert(), dy[..., None, :], 0)
        weighted = np.where(self.has_expert(), self.weight[..., None], 0)
        dh = (self.of_slots(self.down) * dy[..., :, None]).sum(-2)
        of_gate = weighted * dh
        of_gate = np.where(slope == 0, slope, of_gate * up) if self._selects() else of_gate * up * slope
        dz = np.concatenate([of_gate, weighted * dh * of_up], -1)
        found = {
            "x": (self.of_slots(self.gate_up) * dz[..., :, None]).sum((-3, -2)),
            "weight": (dh * value * up).sum(-1) + self._of_bias(dy),
            "gate_up": self.by_expert(dz[..., :, None] * self.x[..., None, :]),
            "down": self.by_expert((weighted * dy)[..., :, None] * (value * up)[..., None, :]),
            "gate_up_bias": self.by_expert(dz),
            "down_bias": self.by_expert(weighted * dy),
        }
        if self.options["interleaved"]:
            found["gate_up"], found["gate_up_bias"] = (_alternating(found[n]) for n in ("gate_up", "gate_up_bias"))
        if not self.options["transpose_weight"]:
            found["gate_up"], found["down"] = (found[name].swapaxes(1, 2) for name in ("gate_up", "down"))
        given = {"gate_up_bias": self.gate_up_bias, "down_bias": self.down_bias}
        return {name: value for name, value in found.items() if name not in given or given[name] is not None}

    def _of_bias(self, dy):
        return 0 if self.down_bias is None else (dy * self.of_slots(self.down_bias)).sum(-1)

    def _selects(self):
        """True if a slope of 0 stops a gradient, even one that is infinite."""
        return self.options["activation"] == "relu"


def _apart(x):
    return np.concatenate([x[:, ::2], x[:, 1::2]], 1)


def _alternating(x):
    gates, ups = np.split(x, 2, 1)
    return np.stack([gates, ups], 2).reshape(x.shape)


SPECIFICATION = Experts()
