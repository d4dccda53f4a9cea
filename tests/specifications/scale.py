import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pairwise, pick


class Scale(Specification):
    name = "scale"
    signature = "(x, factor)"
    parameters = ("factor",)

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape), "factor": random.normal(size=())})

    def more_samples(self, random):
        x = random.normal(size=(3, 5))
        yield Sample({"x": x, "factor": 1 / 3}, name="number")
        yield Sample({"x": x, "factor": -2}, name="integer")
        yield Sample({"x": x, "factor": np.array([0.7])}, name="one-element")

    def low_curvature_sample(self, random):
        """As for axpby."""
        return Sample({"x": 300 * random.choice([-1.0, 1.0], size=(6, 32)), "factor": np.array(299.0)})

    def draw(self, shape, random):
        factor = pick(random, 1 / 3, -2, None)
        sample = self.sample(shape, random)
        return Sample({**sample.inputs, "factor": sample.inputs["factor"] if factor is None else factor})

    def special(self, values, random):
        for factor in values:
            yield Sample({"x": values, "factor": np.asarray(factor)})

    def reference(self, x, factor):
        return x * factor

    def gradients(self, dy, *, x, factor):
        return {"x": dy * factor, "factor": np.sum(dy * x).reshape(np.shape(factor))}

    def roundings(self, x, factor):
        number = not isinstance(factor, np.ndarray)  # rounded to the compute dtype
        return {"y": 1 + number, "dx": 1 + number, "dfactor": pairwise(x.size)}

    bad = bad_calls(
        "scale",
        {"x": "float32[3]", "factor": 2.0},
        {
            "x must be float64, float32, float16 or bfloat16; got bool": "bool[3]",
            "factor must have x's dtype, float16, or float32; got float64": {"x": "float16[3]", "factor": "float64[]"},
            "factor must be a number or a tensor of one element; got shape [1, 3]": "float32[1, 3]",
            "factor must be a number or a tensor of one element; got NoneType": None,
        },
    )


SPECIFICATION = Scale()
