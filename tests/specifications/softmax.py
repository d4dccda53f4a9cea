import numpy as np

from tests.helpers.attention import summed_to
from tests.helpers.specification import Sample, Specification, any_order, bad_calls, pairwise, pick


class Softmax(Specification):
    name = "softmax"
    signature = "(x, *, scale=1.0, mask=None, causal=False, bias=None)"
    terms = ("bias",)
    least_rank = 1

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape)})

    def more_samples(self, random):
        x = random.normal(size=(2, 3, 5, 7))
        for shape in (
            (7,),
            (5, 7),
            (5, 1),
            (3, 1, 7),
            (2, 1, 1, 7),
            (2, 1, 5, 1),
            (1,),
            (),
            (2, 3, 5, 7),
            (1, 3, 1, 1),
        ):
            mask = np.asarray(random.random(size=shape) < 0.7)
            yield Sample({"x": x, "mask": mask}, name=f"mask-{'x'.join(map(str, shape)) or 'scalar'}")
        yield Sample({"x": x[..., :4, :], "mask": np.zeros((4, 7), bool)}, name="nothing-kept")
        yield Sample(
            {"x": random.normal(size=(4, 6, 64)), "mask": random.random(size=(6, 64)) < 0.5}, name="mask-vectors"
        )
        # A mask that hides all infinities and NaN.
        wild = np.array([[1.0, np.nan, 2.0, np.inf, -1.0], [np.nan, 0.0, np.inf, -np.inf, 3.0]])
        yield Sample({"x": wild, "mask": np.isfinite(wild)}, name="mask-hides")
        for rows, columns in ((5, 5), (3, 8), (8, 3), (1, 4), (40, 64)):
            x = random.normal(size=(2, rows, columns))
            yield Sample({"x": x}, {"causal": True}, name=f"causal-{rows}x{columns}")
            mask = random.random(size=(2, 1, columns)) < 0.7
            yield Sample({"x": x, "mask": mask}, {"causal": True, "scale": 0.3}, name=f"causal-mask-{rows}x{columns}")
        for scale in (0.125, -0.7, 0, 30.0):
            yield Sample({"x": random.normal(size=(3, 33))}, {"scale": scale}, name=f"scale-{scale}")
        yield Sample({"x": 1e4 * random.normal(size=(3, 33))}, name="large")
        yield Sample({"x": 1e4 + random.normal(size=(3, 33))}, name="far")
        yield from self.with_bias(random)

    def with_bias(self, random):
        """Every way to broadcast, beside every option, and rows longer than a block. Minus infinity hides elements, in
        some rows all. The gradient of a bias without columns cancels: such calls are too large for comparisons that
        are relative to the result."""
        for shape in ((7,), (5, 7), (3, 1, 7), (2, 1, 5, 1), (), (2, 3, 5, 7), (2, 1, 1, 7)):
            columns = 7 if shape[-1:] == (7,) else 40
            mask = {"mask": random.random(size=(5, columns)) < 0.7} if len(shape) > 1 else {}
            bias = {"bias": np.asarray(random.normal(size=shape))}
            inputs = {"x": random.normal(size=(2, 3, 5, columns)), **mask, **bias}
            options = {"scale": -0.5, "causal": len(shape) > 2}
            yield Sample(inputs, options, name=f"bias-{'x'.join(map(str, shape)) or 'scalar'}")
        bias = random.normal(size=(3, 5))
        bias[0], bias[1, ::2] = -np.inf, -np.inf
        x = np.where(np.isfinite(bias), random.normal(size=(2, 3, 5)), np.nan)
        yield Sample({"x": x, "bias": bias}, name="bias-hides")
        for columns in (64, 1500):
            x, bias = random.normal(size=(40, columns)), random.normal(size=columns)
            yield Sample({"x": x, "bias": bias}, {"scale": 0.3}, name=f"bias-of-{columns}-columns")

    def low_curvature_sample(self, random):
        return Sample({"x": random.normal(size=(6, 32))}, {"scale": 1e-2})

    def draw(self, shape, random):
        options = {
            "scale": pick(random, 1.0, 0.125, -0.7, 30.0),
            "causal": len(shape) > 1 and pick(random, True, False),
        }
        mask = [pick(random, 1, size) for size in shape[pick(random, *range(len(shape) + 1)) :]]
        masked = pick(random, True, False)
        inputs = dict(self.sample(shape, random).inputs)
        if masked:
            inputs["mask"] = np.asarray(random.random(size=mask) < 0.7)
        if pick(random, True, False):
            bias, hidden = np.asarray(random.normal(size=mask)), pick(random, 0.0, 0.3)
            inputs["bias"] = np.where(random.random(size=mask) < hidden, -np.inf, bias)
        return Sample(inputs, options)

    def special(self, values, random):
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        pairs = np.stack([a, b], -1)
        yield Sample({"x": pairs})
        yield Sample({"x": pairs}, {"scale": -0.5})
        yield Sample({"x": pairs}, {"scale": 0.0})
        yield Sample({"x": pairs}, {"causal": True})
        yield Sample({"x": pairs, "mask": np.array([True, False])})
        yield Sample({"x": np.ones_like(pairs), "bias": pairs}, {"scale": 0.5})
        yield Sample({"x": np.stack([a, np.ones_like(a), b], -1), "mask": np.array([True, True, False])})

    def reference(self, x, mask=None, scale=1.0, causal=False, bias=None):
        return shares(x, mask, scale, causal, bias)[0]

    def gradients(self, dy, *, x, mask=None, scale=1.0, causal=False, bias=None):
        y, _ = shares(x, mask, scale, causal, bias)
        with np.errstate(all="ignore"):
            of_terms = y * (dy - np.sum(dy * y, -1, keepdims=True))
            dx = np.asarray(scale, x.dtype) * of_terms
        return {"x": dx} if bias is None else {"x": dx, "bias": summed_to(bias.shape, of_terms)}

    def magnitude(self, x, mask=None, scale=1.0, causal=False, bias=None):
        """y, plus the effect of an exponent's roundings: of y's own, and of those in the sum."""
        y, exponents = shares(x, mask, scale, causal, bias)
        if bias is not None:  # exponents are sums, whose terms may cancel
            with np.errstate(all="ignore"):
                terms = np.abs(np.asarray(scale, x.dtype) * x) + np.abs(bias)
                exponents = exponents + np.where(np.isfinite(terms), terms, 0)
        return y * (1 + exponents / 4 + np.sum(y * exponents, -1, keepdims=True) / 4)

    def gradient_magnitude(self, dy, *, x, mask=None, scale=1.0, causal=False, bias=None):
        y, _ = shares(x, mask, scale, causal, bias)
        size, dy = self.magnitude(x, mask, scale, causal, bias), np.abs(dy)
        terms = size * (dy + np.sum(dy * y, -1, keepdims=True)) + y * np.sum(dy * size, -1, keepdims=True)
        dx = np.abs(np.asarray(scale, x.dtype)) * terms
        return {"x": dx} if bias is None else {"x": dx, "bias": summed_to(bias.shape, terms)}

    def roundings(self, x, mask=None, scale=1.0, causal=False, bias=None):
        # Two exponentials of 2 ulp, the products around them, the sum. Four more in each exponent, which is a quarter.
        y = 12 + pairwise(x.shape[-1])
        dx = y + 3 + pairwise(x.shape[-1])
        return {"y": y, "dx": dx, "dbias": dx + any_order(x.size // max(np.size(bias), 1))}

    def storage_roundings(self, x, mask=None, scale=1.0, causal=False, bias=None):
        # y, as a factor and in the sum. A subnormal y errs by more than its share: by that of the other factor, which
        # is below 6 in normal numbers.
        return {"dx": 2 + 6 * abs(scale), "dbias": 8}

    bad = bad_calls(
        "softmax",
        {"x": "float32[2, 3]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int32": "int32[2, 3]",
            "x must have at least one dimension; got shape []": "float32[]",
            "x must have at least two dimensions to be causal; got shape [3]": {"x": "float32[3]", "causal": True},
            "mask must be bool; got float32: True marks what is visible; a bias is added to the scores": {
                "mask": "float32[2, 3]"
            },
            "mask must be broadcastable to x's shape, [2, 3]; got [2]": "bool[2]",
            "mask must be broadcastable to x's shape, [2, 3]; got [1, 2, 3]": "bool[1, 2, 3]",
            "mask must be broadcastable to x's shape, [1, 3]; got [4, 3]": {"x": "float32[1, 3]", "mask": "bool[4, 3]"},
            "bias must have x's dtype, float32; got bool": "bool[2, 3]",
            "bias must be broadcastable to x's shape, [2, 3]; got [2]": "float32[2]",
            "scale must be a number; got '2'": "2",
            "causal must be a bool; got 1": 1,
            "x must be a tensor; got NoneType": None,
        },
    )


def shares(x, mask, scale, causal, bias=None):
    """The softmax, and the distance of each exponent from the largest; 0 if it is infinite."""
    kept = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask, x.shape)
    if causal:
        rows, columns = x.shape[-2:]
        kept = kept & np.tri(rows, columns, columns - rows, dtype=bool)
    if bias is not None:
        kept = kept & (bias != -np.inf)
    with np.errstate(all="ignore"):
        z = np.asarray(scale, x.dtype) * x + (0 if bias is None else bias)
        z = np.where(kept, z, -np.inf).astype(x.dtype)
        below = z - z.max(-1, keepdims=True, initial=-np.inf)
        exponentials = np.where(kept, np.exp(below), 0)
        y = np.where(kept, exponentials / exponentials.sum(-1, keepdims=True), 0).astype(x.dtype)
    return y, np.where(np.isfinite(below), -below, 0)


SPECIFICATION = Softmax()
