import numpy as np

from tests.helpers.specification import Bad, Like, Sample, Specification


class Add(Specification):
    name = "add"
    signature = "(x, y)"

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape), "y": random.normal(size=shape)})

    def special(self, values, random):
        x, y = (grid.ravel() for grid in np.meshgrid(values, values))
        yield Sample({"x": x, "y": y})

    def reference(self, x, y):
        return x + y

    def gradients(self, dy, *, x, y):
        return {"x": dy, "y": dy}

    def roundings(self, x, y):
        return {"y": 1, "dx": 0, "dy": 0}

    bad = (
        Bad(
            {"x": Like("complex64", (3,)), "y": Like("complex64", (3,))},
            "fusedops.add: x must be float64, float32, float16 or bfloat16; got complex64",
        ),
        Bad(
            {"x": Like("float32", (3, 1)), "y": Like("float32", (3,))},
            "fusedops.add: y must have x's shape, [3, 1]; got [3]",
        ),
        Bad(
            {"x": Like("float32", (3,)), "y": Like("float32", ())},
            "fusedops.add: y must have x's shape, [3]; got []",
        ),
        Bad(
            {"x": Like("float32", (3,)), "y": Like("float64", (3,))},
            "fusedops.add: y must have x's dtype, float32; got float64",
        ),
        Bad(
            {"x": Like("float32", (3,)), "y": None},
            "fusedops.add: y must be a tensor; got NoneType",
        ),
    )


SPECIFICATION = Add()
