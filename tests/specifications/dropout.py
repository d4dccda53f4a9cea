import numpy as np

from tests.helpers.dropout import draw_seed, dropped
from tests.helpers.specification import Bad, Like, Sample, Specification, pick

SEED = Like("int64", (2,))


class Dropout(Specification):
    shared = ("seed",)
    rows_are_independent = False  # dropped elements depend on the position

    def __init__(self, name: str, *others: str) -> None:
        self.name, self.others = name, others
        self.value_suites_only = not others  # for the function that is the other's derivative
        self.signature = f"({', '.join(('x', *others))}, rate, seed=None)"
        self.bad = tuple(self.bad_calls())

    def call(self, x, random, rate, *, name="", **others):
        residuals = {other: random.normal(size=x.shape) for other in self.others}
        return Sample({"x": x, **residuals, "seed": draw_seed(random), **others}, {"rate": rate}, name)

    def sample(self, shape, random):
        return self.call(random.normal(size=shape), random, 0.3)

    def more_samples(self, random):
        for rate in (0.0, 1e-3, 0.999, 1 - 2**-53, 0):
            yield self.call(random.normal(size=(7, 19)), random, rate, name=f"rate-{rate}")
        yield self.call(random.normal(size=(7, 5)), random, 0.5, name="pair", seed=(2**63 - 1, -5))
        yield self.call(random.normal(size=(0, 5)), random, 0.5, name="no-elements")

    def draw(self, shape, random):
        return self.call(random.normal(size=shape), random, pick(random, 0.0, 0.1, 0.5, 0.9))

    def special(self, values, random):
        yield self.call(np.repeat(values, 8), random, 0.3)
        for residual in self.others:
            yield self.call(np.ones(8 * values.size), random, 0.3, **{residual: np.repeat(values, 8)})

    def reference(self, x, rate, seed, residual=None):
        y = dropped(x, rate, seed)
        return y if residual is None else residual + y

    def gradients(self, dy, *, x, rate, seed, residual=None):
        return {"x": dropped(dy, rate, seed), "residual": dy}

    def magnitude(self, x, rate, seed, residual=None):
        return self.reference(np.abs(x), rate, seed, None if residual is None else np.abs(residual))

    def gradient_magnitude(self, dy, *, x, rate, seed, residual=None):
        return self.gradients(np.abs(dy), x=x, rate=rate, seed=seed)

    def roundings(self, x, rate, seed, residual=None):
        return {"y": 2 + (residual is not None), "dx": 2, "dresidual": 0}  # the scale and the product, then the sum

    def bad_calls(self):
        def bad(sentence, rate=0.5, **changed):
            given = {name: Like("float32", (3,)) for name in ("x", *self.others)}
            return Bad({**given, "seed": SEED, **changed}, f"fusedops.{self.name}: {sentence}", {"rate": rate})

        yield bad("x must be float64, float32, float16 or bfloat16; got int32", x=Like("int32", (3,)))
        yield bad("x must be a tensor; got NoneType", x=None)
        for residual in self.others:
            yield bad(f"{residual} must have x's shape, [3]; got [3, 1]", **{residual: Like("float32", (3, 1))})
            yield bad(f"{residual} must have x's dtype, float32; got float16", **{residual: Like("float16", (3,))})
        for rate in (1.0, 1.5, -0.1, float("nan"), float("inf")):
            yield bad(f"rate must be in [0, 1); got {rate:g}", rate=rate)
        yield bad("rate must be a number; got '0.5'", rate="0.5")
        yield bad("seed must be int64; got float32", seed=Like("float32", (2,)))
        yield bad("seed must be int64; got int32", seed=Like("int32", (2,)))
        yield bad("seed must have shape [2], a key and an offset, or [5] for a part; got [3]", seed=Like("int64", (3,)))
        yield bad("seed must have shape [2], a key and an offset, or [5] for a part; got []", seed=Like("int64", ()))
        pair = "seed must be an int64 tensor of shape [2], a pair of integers or None; got"
        yield bad(f"{pair} (1, 2, 3)", seed=(1, 2, 3))
        yield bad(f"{pair} [1, 0.5]", seed=[1, 0.5])
        yield bad(f"{pair} (9223372036854775808, 0)", seed=(2**63, 0))
        yield bad(f"{pair} 3", seed=3)
        yield bad(f"{pair} 'seed'", seed="seed")


SPECIFICATION = Dropout("dropout")
