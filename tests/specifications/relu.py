import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls


class Relu(Specification):
    name = "relu"
    signature = "(x)"

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape)})

    def special(self, values, random):
        yield Sample({"x": values})

    def reference(self, x):
        return np.where(x <= 0, np.zeros_like(x), x)  # NaN propagates

    def gradients(self, dy, *, x):
        return {"x": np.where(x <= 0, np.zeros_like(dy), dy)}

    def roundings(self, x):
        return {"y": 0, "dx": 0}

    bad = bad_calls(
        "relu",
        {"x": "float32[3]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int64": "int64[3]",
            "x must be float64, float32, float16 or bfloat16; got uint8": "uint8[]",
            "x must be a tensor; got NoneType": None,
        },
    )


SPECIFICATION = Relu()
