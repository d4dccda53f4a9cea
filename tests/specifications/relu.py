import numpy as np

from tests.helpers.specification import Bad, Like, Sample, Specification


class Relu(Specification):
    name = "relu"
    signature = "(x)"

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape)})

    def special(self, values, random):
        yield Sample({"x": values})

    def reference(self, x):
        return np.where(x <= 0, np.zeros_like(x), x)  # a NaN stays

    def gradients(self, dy, *, x):
        return {"x": np.where(x <= 0, np.zeros_like(dy), dy)}

    def roundings(self, x):
        return {"y": 0, "dx": 0}

    bad = (
        Bad(
            {"x": Like("int64", (3,))},
            "fusedops.relu: x must be float64, float32, float16 or bfloat16; got int64",
        ),
        Bad(
            {"x": Like("uint8", ())},
            "fusedops.relu: x must be float64, float32, float16 or bfloat16; got uint8",
        ),
        Bad(
            {"x": None},
            "fusedops.relu: x must be a tensor; got NoneType",
        ),
    )


SPECIFICATION = Relu()
