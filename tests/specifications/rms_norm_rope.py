import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pick
from tests.specifications.rms_norm import SPECIFICATION as NORM
from tests.specifications.rope import call as of_rope
from tests.specifications.rope import rotated, terms


class RmsNormRope(Specification):
    """The formulas of rms_norm and rope, one behind the other."""

    name = "rms_norm_rope"
    signature = "(x, weight, cos, sin, *, eps=1e-06, weight_offset=0.0, seq_dim=-3, interleaved=False)"
    parameters = ("weight", "cos", "sin")
    not_differentiable = ("cos", "sin")
    least_rank = 2

    def sample(self, shape, random):
        return call(shape, (shape[-2], shape[-1] // 2), random, seq_dim=-2)

    def more_samples(self, random):
        yield call((3, 17), (3, 4), random, "no-weight", seq_dim=-2, weight=False)
        yield call((2, 3, 2, 8), (3, 4), random, "weight-offset", weight_offset=1.0)
        yield call((2, 3, 2, 8), (3, 4), random, "eps", eps=0.7)
        for interleaved in (False, True):
            # Whole packs and partial ones; all features and some; more slots than lanes; batches of angles.
            name = "neighbours" if interleaved else "halves"
            options = {"interleaved": interleaved}
            yield call((2, 3, 2, 64), (3, 32), random, f"{name}-packs", **options)
            yield call((2, 3, 2, 80), (2, 3, 16), random, f"{name}-packs-some", **options)
            yield call((2, 3, 2, 24), (3, 8), random, f"{name}-odd-pack", **options)
            yield call((3, 2, 7), (3, 2), random, f"{name}-some", **options)
            yield call((3, 2, 150), (3, 33), random, f"{name}-slots", **options)
            yield call((2, 2, 3, 16), (2, 3, 8), random, f"{name}-behind-batch", seq_dim=-2, **options)
            yield call((2, 2, 3, 2, 16), (2, 3, 8), random, f"{name}-batch-of-many", **options)
        yield call((1, 2, 1, 2112), (2, 1056), random, "long")
        yield call((5, 100, 2, 16), (100, 8), random, "many-rows")  # several row chunks
        yield call((0, 3, 8), (0, 4), random, "no-rows")

    def low_curvature_sample(self, random):
        sample = self.sample((6, 32), random)
        return Sample({**sample.inputs, "x": 100 * sample.inputs["x"]}, sample.options)

    def draw(self, shape, random):
        seq_dim = pick(random, -2, -3) if len(shape) > 2 else -2
        positions = (shape[seq_dim], shape[-1] // pick(random, 2, 2, 3, 4))
        batched = len(shape) > -seq_dim and pick(random, True, False)
        options = {"seq_dim": seq_dim, "interleaved": pick(random, True, False), "weight": pick(random, True, False)}
        options |= pick(random, {}, {"eps": 1e-3}, {"weight_offset": 1.0})
        return call(shape, (*shape[: int(batched)], *positions), random, **options)

    def special(self, values, random):
        for sample in NORM.special(values, random):
            x, weight = sample.inputs["x"], sample.inputs["weight"]
            half = x.shape[-1] // 2
            if weight is not None and np.all(np.isfinite(weight)) and np.all(np.isfinite(x)):
                yield of_angles(x, weight, (len(x), half), random, "", {"seq_dim": -2})

    def reference(self, x, weight, cos, sin, seq_dim=-3, interleaved=False, **norm):
        return rotated(NORM.reference(x, weight=weight, **norm), cos, sin, seq_dim, interleaved)

    def magnitude(self, x, weight, cos, sin, seq_dim=-3, interleaved=False, **norm):
        return terms(NORM.magnitude(x, weight=weight, **norm), cos, sin, seq_dim, interleaved)

    def gradients(self, dy, *, x, weight, cos, sin, seq_dim=-3, interleaved=False, **norm):
        dz = rotated(dy, cos, -sin, seq_dim, interleaved)
        return self.of_norm(NORM.gradients(dz, x=x, weight=weight, **norm))

    def gradient_magnitude(self, dy, *, x, weight, cos, sin, seq_dim=-3, interleaved=False, **norm):
        dz = terms(dy, cos, sin, seq_dim, interleaved)
        return self.of_norm(NORM.gradient_magnitude(dz, x=x, weight=weight, **norm))

    def of_norm(self, gradients):
        return {name: gradients[name] for name in ("x", "weight")}

    def roundings(self, x, **others):
        """The norm's roundings, and two for each rotation; dz is in both terms of dx."""
        norm = NORM.roundings(x)
        return {"y": norm["y"] + 2, "dx": norm["dx"] + 4, "dweight": norm["dweight"] + 2}

    bad = bad_calls(
        "rms_norm_rope",
        {"x": "float32[5, 3, 8]", "weight": "float32[8]", "cos": "float32[5, 4]", "sin": "float32[5, 4]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int64": "int64[5, 3, 8]",
            "weight must have shape [8], the last dimension of x; got [7]": "float32[7]",
            "weight must have x's dtype, float32; got float16": "float16[8]",
            "cos must have x's dtype, float32; got float64": {"cos": "float64[5, 4]", "sin": "float64[5, 4]"},
            "cos must have shape [5, R/2 <= 4] beside x of shape [5, 3, 8]; got [3, 4]": dict.fromkeys(
                ("cos", "sin"), "float32[3, 4]"
            ),
            "sin must have cos's shape, [5, 4]; got [5, 3]": "float32[5, 3]",
            "seq_dim must be -3 or -2; got -1": -1,
            "eps must be a number; got '1'": "1",
            "cos must be a tensor; got NoneType": None,
        },
    )


def call(shape, angles, random, name="", weight=True, **options):
    return of_angles(
        random.normal(size=shape), random.normal(size=shape[-1]) if weight else None, angles, random, name, options
    )


def of_angles(x, weight, angles, random, name, options):
    rotation = of_rope(x.shape, angles, random).inputs
    return Sample({"x": x, "weight": weight, "cos": rotation["cos"], "sin": rotation["sin"]}, options, name)


SPECIFICATION = RmsNormRope()
