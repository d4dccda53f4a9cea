import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pick


class Rope(Specification):
    name = "rope"
    signature = "(x, cos, sin, *, seq_dim=-3, interleaved=False)"
    parameters = ("cos", "sin")
    not_differentiable = ("cos", "sin")
    least_rank = 2

    def sample(self, shape, random):
        # cos and sin then lack the leading dimensions, which some suites vary.
        return call(shape, (shape[-2], shape[-1] // 2), random, seq_dim=-2)

    def more_samples(self, random):
        for interleaved in (False, True):
            name = "neighbours" if interleaved else "halves"
            options = {"interleaved": interleaved}
            # Whole vectors and partial ones, all features and some, positions before the heads and after them, batches
            # of angles.
            yield call((2, 3, 2, 32), (3, 16), random, f"{name}-vectors", **options)
            yield call((2, 3, 2, 48), (3, 8), random, f"{name}-vectors-some", **options)
            yield call((3, 2, 7), (3, 2), random, f"{name}-some", **options)
            yield call((3, 2, 4), (3, 0), random, f"{name}-none", **options)
            yield call((2, 3, 2, 4), (2, 3, 2), random, f"{name}-batch", **options)
            yield call((2, 2, 3, 2, 16), (2, 3, 8), random, f"{name}-batch-of-many", **options)
            yield call((2, 2, 3, 4), (3, 2), random, f"{name}-behind", seq_dim=-2, **options)
            yield call((2, 2, 3, 16), (2, 3, 8), random, f"{name}-behind-batch", seq_dim=-2, **options)
            yield call((2, 3, 4), (2, 3, 2), random, f"{name}-behind-batch-no-heads", seq_dim=-2, **options)
        yield call((2, 3, 2, 4), (3, 2), random, "from-the-first", seq_dim=1)
        yield call((1, 2, 1, 4098), (2, 2049), random, "long")

    def draw(self, shape, random):
        seq_dim = pick(random, -2, -3) if len(shape) > 2 else -2
        positions = (shape[seq_dim], shape[-1] // pick(random, 2, 2, 3, 4))
        batched = len(shape) > -seq_dim and pick(random, True, False)
        options = {"seq_dim": seq_dim, "interleaved": pick(random, True, False)}
        return call(shape, (*shape[: int(batched)], *positions), random, **options)

    def special(self, values, random):
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        pairs = np.stack([a, b], -1)
        x = np.broadcast_to(pairs, (len(pairs), *pairs.shape))  # each pair by each angle
        yield Sample({"x": x.copy(), "cos": a[:, None].copy(), "sin": b[:, None].copy()})

    def reference(self, x, cos, sin, seq_dim=-3, interleaved=False):
        return rotated(x, cos, sin, seq_dim, interleaved)

    def gradients(self, dy, *, x, cos, sin, seq_dim=-3, interleaved=False):
        return {"x": rotated(dy, cos, -sin, seq_dim, interleaved)}

    def magnitude(self, x, cos, sin, seq_dim=-3, interleaved=False):
        return terms(x, cos, sin, seq_dim, interleaved)

    def gradient_magnitude(self, dy, *, x, cos, sin, seq_dim=-3, interleaved=False):
        return {"x": terms(dy, cos, sin, seq_dim, interleaved)}

    def roundings(self, x, cos, sin, seq_dim=-3, interleaved=False):
        return {"y": 2, "dx": 2}

    bad = bad_calls(
        "rope",
        {"x": "float32[5, 3, 8]", "cos": "float32[5, 4]", "sin": "float32[5, 4]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int64": "int64[5, 3, 8]",
            "cos must have x's dtype, float32; got float64": {"cos": "float64[5, 4]", "sin": "float64[5, 4]"},
            "cos must have x's dtype, float16, or float32; got bfloat16": {
                "x": "float16[5, 3, 8]",
                "cos": "bfloat16[5, 4]",
                "sin": "bfloat16[5, 4]",
            },
            "sin must have cos's dtype, float32; got float16": {"x": "float16[5, 3, 8]", "sin": "float16[5, 4]"},
            "x must have at least 3 dimensions; got shape [3, 8]": {
                "x": "float32[3, 8]",
                "cos": "float32[3, 4]",
                "sin": "float32[3, 4]",
            },
            "x must have at least 2 dimensions; got shape [8]": {
                "x": "float32[8]",
                "cos": "float32[3, 4]",
                "sin": "float32[3, 4]",
                "seq_dim": -2,
            },
            "cos must have shape [T, R/2] or [B, T, R/2]; got [4]": {"cos": "float32[4]", "sin": "float32[4]"},
            "cos must have shape [5, R/2 <= 4] beside x of shape [5, 3, 8]; got [3, 4]": dict.fromkeys(
                ("cos", "sin"), "float32[3, 4]"
            ),
            "cos must have shape [5, R/2 <= 4] beside x of shape [5, 3, 8]; got [5, 5]": dict.fromkeys(
                ("cos", "sin"), "float32[5, 5]"
            ),
            "cos must have shape [2, 5, R/2 <= 4] beside x of shape [2, 5, 3, 8]; got [3, 5, 4]": {
                "x": "float32[2, 5, 3, 8]",
                "cos": "float32[3, 5, 4]",
                "sin": "float32[3, 5, 4]",
            },
            "cos must have shape [T, R/2] beside x of shape [5, 3, 8]; got [1, 5, 4]": dict.fromkeys(
                ("cos", "sin"), "float32[1, 5, 4]"
            ),
            "sin must have cos's shape, [5, 4]; got [5, 3]": "float32[5, 3]",
            "seq_dim must be -3 or -2; got -1": -1,
            "seq_dim must be -3 or -2; got 2": 2,
            "interleaved must be a bool; got 1": 1,
            "sin must be a tensor; got NoneType": None,
        },
    )


def call(shape, angles, random, name="", **options):
    angle = random.uniform(-np.pi, np.pi, size=angles)
    return Sample({"x": random.normal(size=shape), "cos": np.cos(angle), "sin": np.sin(angle)}, options, name)


def rotated(x, cos, sin, seq_dim, interleaved, sign=-1):
    """`sign` 1 inverts the rotation."""
    pairs = cos.shape[-1]
    if interleaved:
        first, second = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    else:
        first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    cos, sin = (broadcast_angles(angles, x.ndim, seq_dim) for angles in (cos, sin))
    halves = first * cos + sign * (second * sin), second * cos + first * sin
    whole = np.stack(halves, -1).reshape(*first.shape[:-1], 2 * pairs) if interleaved else np.concatenate(halves, -1)
    return np.concatenate([whole, x[..., 2 * pairs :]], -1)


def terms(x, cos, sin, seq_dim, interleaved):
    return rotated(abs(x), abs(cos), abs(sin), seq_dim, interleaved, sign=1)


def broadcast_angles(angles, rank, seq_dim):
    """[T, R/2] or [B, T, R/2] broadcast to the rank of x: B first, T at seq_dim."""
    shape = [1] * rank
    shape[seq_dim], shape[-1] = angles.shape[-2:]
    if angles.ndim == 3:
        shape[0] = angles.shape[0]
    return angles.reshape(shape)


SPECIFICATION = Rope()
