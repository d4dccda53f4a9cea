import itertools
import math

import numpy as np

from tests.helpers.specification import ProductSpecification, Sample, any_order, bad_calls, pick


class Matmul(ProductSpecification):
    name = "matmul"
    signature = "(a, b, *, transpose_a=False, transpose_b=False)"
    least_rank = 2

    def sample(self, shape, random):
        return Sample({"a": random.normal(size=shape), "b": random.normal(size=(*shape[:-2], shape[-1], 5))})

    def more_samples(self, random):
        for leading, shared in (((), False), ((3,), False), ((2, 3), False), ((3,), True), ((2, 2), True)):
            for ta, tb in itertools.product((False, True), repeat=2):
                a = random.normal(size=(*leading, *((7, 9) if ta else (9, 7))))
                b = random.normal(size=(*(() if shared else leading), *((4, 7) if tb else (7, 4))))
                name = f"{'x'.join(map(str, leading)) or 'one'}{'-shared' * shared}{'-ta' * ta}{'-tb' * tb}"
                yield Sample({"a": a, "b": b}, {"transpose_a": ta, "transpose_b": tb}, name=name)
        # Around the tiles of a kernel, and long sums.
        for m, k, n in ((1, 1, 1), (1, 300, 1), (65, 129, 33), (130, 64, 136), (3, 4099, 2), (17, 1, 19)):
            yield Sample({"a": random.normal(size=(m, k)), "b": random.normal(size=(k, n))}, name=f"{m}x{k}x{n}")
        for m, k, n in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
            yield Sample({"a": np.ones((m, k)), "b": np.ones((k, n))}, name=f"{m}x{k}x{n}")
        yield Sample({"a": np.ones((0, 3, 4)), "b": np.ones((4, 5))}, name="no-matrices-shared")

    def draw(self, shape, random):
        ta, tb, shared = (pick(random, True, False) for _ in range(3))
        *leading, rows, inner = shape
        columns = pick(random, 1, 3, 8, 17, 64)
        a = random.normal(size=(*leading, inner, rows) if ta else shape)
        matrix = (columns, inner) if tb else (inner, columns)
        b = random.normal(size=matrix if shared else (*leading, *matrix))
        return Sample({"a": a, "b": b}, {"transpose_a": ta, "transpose_b": tb})

    def special(self, values, random):
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        yield Sample({"a": a.reshape(-1, 1, 1), "b": b.reshape(-1, 1, 1)})
        row = np.ones((3, len(values)))
        row[1] = values
        yield Sample({"a": row.T.copy(), "b": np.array([[1.0, -1.0], [1.0, 0.5], [2.0, 0.0]])})

    def reference(self, a, b, transpose_a=False, transpose_b=False):
        # Products of 16-bit numbers are exact in float32, and NumPy has no fast matrix product of the longest float.
        return (transposed(a, transpose_a)[..., :, :, None] * transposed(b, transpose_b)[..., None, :, :]).sum(-2)

    def gradients(self, dy, *, a, b, transpose_a=False, transpose_b=False):
        da = self.reference(dy, b, transpose_b=not transpose_b)
        db = self.reference(a, dy, transpose_a=not transpose_a)
        db = db.sum(tuple(range(db.ndim - b.ndim)))
        return {"a": transposed(da, transpose_a), "b": transposed(db, transpose_b)}

    def roundings(self, a, b, transpose_a=False, transpose_b=False):
        m, k = transposed(a, transpose_a).shape[-2:]
        n = transposed(b, transpose_b).shape[-1]
        shared = math.prod(a.shape[:-2]) if b.ndim == 2 else 1
        return {"y": any_order(k), "da": any_order(n), "db": any_order(m * shared)}

    bad = bad_calls(
        "matmul",
        {"a": "float32[2, 3]", "b": "float32[3, 4]"},
        {
            "a must be float64, float32, float16 or bfloat16; got int32": {"a": "int32[2, 3]", "b": "int32[3, 4]"},
            "b must have a's dtype, float32; got float16": "float16[3, 4]",
            "a must have at least 2 dimensions; got shape [3]": "float32[3]",
            "b must have at least 2 dimensions; got shape [3]": "float32[3]",
            "b must have 3 rows to multiply a of shape [2, 3]; got shape [4, 5]": "float32[4, 5]",
            "b must have 3 columns to multiply a of shape [2, 3]; got shape [3, 4]": {"transpose_b": True},
            "b must have 2 rows to multiply a of shape [2, 3]; got shape [3, 4]": {"transpose_a": True},
            "b must have two dimensions or a's leading dimensions, [2]; got shape [3, 4, 5]": {
                "a": "float32[2, 3, 4]",
                "b": "float32[3, 4, 5]",
            },
            "b must have two dimensions or a's leading dimensions, []; got shape [2, 4, 5]": {
                "a": "float32[3, 4]",
                "b": "float32[2, 4, 5]",
            },
            "transpose_a must be a bool; got 1": {"a": "float32[3, 4]", "b": "float32[4, 5]", "transpose_a": 1},
            "b must be a tensor; got NoneType": {"a": "float32[3, 4]", "b": None},
        },
    )


def transposed(matrix, transpose):
    return np.swapaxes(matrix, -1, -2) if transpose else matrix


SPECIFICATION = Matmul()
