import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls


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

    bad = bad_calls(
        "add",
        {"x": "float32[3]", "y": "float32[3]"},
        {
            "x must be float64, float32, float16 or bfloat16; got complex64": dict.fromkeys(("x", "y"), "complex64[3]"),
            "y must have x's shape, [3, 1]; got [3]": {"x": "float32[3, 1]"},
            "y must have x's shape, [3]; got []": "float32[]",
            "y must have x's dtype, float32; got float64": "float64[3]",
            "y must be a tensor; got NoneType": None,
        },
    )


SPECIFICATION = Add()
