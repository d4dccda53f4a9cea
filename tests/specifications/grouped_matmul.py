import math

import numpy as np

from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pick


class GroupedMatmul(ProductSpecification):
    name = "grouped_matmul"
    signature = "(x, weights, offsets, *, transpose_weights=True)"
    shared = ("weights", "offsets")
    packed = True

    def sample(self, shape, random):
        """Groups of about a third of the rows each, of which two are empty, and a row past the last one."""
        rows = math.prod(shape[:-1])
        sizes = [rows // 3, 0, (rows - rows // 3) // 2]
        return call(random, [*sizes, max(rows - sum(sizes) - 1, 0), 0], rows, shape[-1])

    def more_samples(self, random):
        yield call(random, [3, 0, 1, 4], 8, 5, out=6, transpose=False, name="in-out")
        yield call(random, [7], 7, 4, name="one-group")
        yield call(random, [0, 0], 3, 4, name="empty-groups")
        yield call(random, [], 2, 4, name="no-groups")
        yield call(random, [2, 1], 3, 0, name="no-columns")
        yield call(random, [2, 1], 3, 4, out=0, name="no-outputs")
        # Around the tiles of a kernel, and more rows than one chunk of a sum.
        yield call(random, [129, 1, 64, 65, 300], 560, 130, out=136, name="tiles")
        yield call(random, [1100], 1100, 3, out=2, name="long")

    def draw(self, shape, random):
        rows = min(math.prod(shape[:-1]), 2000)
        count = pick(random, 1, 2, 7)
        sizes = np.diff(np.sort(random.integers(rows + 1, size=count)), prepend=0).tolist()
        return call(random, sizes, rows, shape[-1], pick(random, 1, 8, 33), pick(random, True, False))

    def special(self, values, random):
        weights, offsets = np.array([[[1.0]], [[-1.0]]]), np.array([0, len(values) // 2, len(values)], np.int32)
        yield Sample({"x": values[:, None], "weights": weights, "offsets": offsets}, name="x")
        ones, each = np.ones((len(values), 1)), np.arange(len(values) + 1, dtype=np.int32)
        yield Sample({"x": ones, "weights": values[:, None, None], "offsets": each}, name="weights")

    def reference(self, x, weights, offsets, transpose_weights=True):
        y = np.zeros((len(x), weights.shape[1 if transpose_weights else 2]), x.dtype)
        for rows, weight in groups(weights, offsets):
            y[rows] = product(x[rows], weight.T if transpose_weights else weight)
        return y

    def gradients(self, dy, *, x, weights, offsets, transpose_weights=True):
        dx, dweights = np.zeros_like(x), np.zeros_like(weights)
        for (rows, weight), to in zip(groups(weights, offsets), dweights, strict=True):
            dx[rows] = product(dy[rows], weight if transpose_weights else weight.T)
            a, b = (dy, x) if transpose_weights else (x, dy)
            to[...] = product(a[rows].T, b[rows])
        return {"x": dx, "weights": dweights}

    def roundings(self, x, weights, offsets, transpose_weights=True):
        largest = int(np.max(np.diff(offsets), initial=0))
        out = weights.shape[1 if transpose_weights else 2]
        return {"y": any_order(x.shape[1]), "dx": any_order(out), "dweights": any_order(largest)}

    bad = bad_calls(
        "grouped_matmul",
        {"x": "float32[5, 3]", "weights": "float32[2, 4, 3]", "offsets": "int32[3]"},
        {
            "x must have 2 dimensions; got shape [1, 5, 3]": "float32[1, 5, 3]",
            "weights must have x's dtype, float32; got float16": "float16[2, 4, 3]",
            "weights must have shape [E, out, 3]; got [4, 3]": "float32[4, 3]",
            "weights must have shape [E, out, 3]; got [2, 3, 4]": "float32[2, 3, 4]",
            "weights must have shape [E, 3, out]; got [2, 4, 3]": {"transpose_weights": False},
            "offsets must be int32; got int64": "int64[3]",
            "offsets must have shape [3], one number more than there are weights; got [2]": "int32[2]",
        },
    )


def call(random, sizes, rows, columns, out=5, transpose=True, name=""):
    groups = len(sizes)
    weights = random.normal(size=(groups, out, columns) if transpose else (groups, columns, out))
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    inputs = {"x": random.normal(size=(rows, columns)), "weights": weights / max(1, columns) ** 0.5, "offsets": offsets}
    return Sample(inputs, {"transpose_weights": transpose}, name)


def groups(weights, offsets):
    return [(slice(*pair), weight) for *pair, weight in zip(offsets[:-1], offsets[1:], weights, strict=True)]


def product(a, b):
    return (a[:, :, None] * b).sum(1)


SPECIFICATION = GroupedMatmul()
