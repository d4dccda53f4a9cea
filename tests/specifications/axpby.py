import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pairwise, pick


class Axpby(Specification):
    name = "axpby"
    signature = "(a, x, b)"
    parameters = ("a",)

    def sample(self, shape, random):
        return Sample({"a": random.normal(size=()), "x": random.normal(size=shape), "b": random.normal(size=shape)})

    def more_samples(self, random):
        x, b = random.normal(size=(2, 3, 5))
        yield Sample({"a": -0.3, "x": x, "b": b}, name="number")
        yield Sample({"a": 3, "x": x, "b": b}, name="integer")
        yield Sample({"a": np.array([[1.7]]), "x": x, "b": b}, name="one-element")

    def low_curvature_sample(self, random):
        """The two parts of the gradient of dy, da·x and a·dx, exceed float16; their sum often does not."""
        x, b = 300 * random.choice([-1.0, 1.0], size=(2, 6, 32))
        return Sample({"a": np.array(299.0), "x": x, "b": b})

    def draw(self, shape, random):
        a = pick(random, -0.3, 3, None)
        sample = self.sample(shape, random)
        return Sample({**sample.inputs, "a": sample.inputs["a"] if a is None else a})

    def special(self, values, random):
        x, b = (grid.ravel() for grid in np.meshgrid(values, values))
        for a in values:
            yield Sample({"a": np.asarray(a), "x": x, "b": b})

    def reference(self, a, x, b):
        return a * x + b

    def gradients(self, dy, *, a, x, b):
        return {"a": np.sum(dy * x).reshape(np.shape(a)), "x": a * dy, "b": dy}

    def roundings(self, a, x, b):
        number = not isinstance(a, np.ndarray)  # rounded to the compute dtype
        return {"y": 2 + number, "da": pairwise(x.size), "dx": 1 + number, "db": 0}

    bad = bad_calls(
        "axpby",
        {"a": 2.0, "x": "float32[3]", "b": "float32[3]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int32": {"x": "int32[3]", "b": "int32[3]"},
            "b must have x's shape, [2, 3]; got [2, 4]": {"x": "float32[2, 3]", "b": "float32[2, 4]"},
            "b must have x's shape, [2, 3]; got [3]": {"x": "float32[2, 3]"},
            "b must have x's dtype, float16; got float32": {"a": "float32[]", "x": "float16[3]"},
            "a must have x's dtype, bfloat16, or float32; got float16": {
                "a": "float16[]",
                "x": "bfloat16[3]",
                "b": "bfloat16[3]",
            },
            "a must have x's dtype, bfloat16, or float32; got int64": {
                "a": "int64[]",
                "x": "bfloat16[3]",
                "b": "bfloat16[3]",
            },
            "a must be a number or a tensor of one element; got shape [2]": "float32[2]",
            "a must be a number or a tensor of one element; got shape [0]": "float32[0]",
            "a must be a number or a tensor of one element; got NoneType": None,
            "a must be a number or a tensor of one element; got bool": True,
            "b must be a tensor; got NoneType": None,
        },
    )


SPECIFICATION = Axpby()
