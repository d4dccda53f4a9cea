import numpy as np

from tests.helpers.specification import Sample, Specification, bad_calls, pick


class PolynomialActivation(Specification):
    name = "polynomial_activation"
    signature = "(x, coefficients=(1.0, 1.0, 1.0))"

    def sample(self, shape, random):
        return Sample({"x": random.normal(size=shape)})

    def more_samples(self, random):
        x = random.normal(size=(3, 5))
        for count in range(1, 9):
            coefficients = tuple(float(c) for c in random.normal(size=count))
            yield Sample({"x": x}, {"coefficients": coefficients}, name=f"{count}-coefficients")
        yield Sample({"x": x}, {"coefficients": [1, 0, 2]}, name="integers")

    def low_curvature_sample(self, random):
        return Sample({"x": random.normal(size=(6, 32))}, {"coefficients": (0.0, 0.0, 1e-3, 1e-3)})

    def draw(self, shape, random):
        coefficients = (0.5, -1.3, 0.2, 1.0, -0.7, 0.3, 0.1, -0.4)[: pick(random, *range(1, 9))]
        return Sample(self.sample(shape, random).inputs, {"coefficients": coefficients})

    def special(self, values, random):
        yield Sample({"x": values})
        yield Sample({"x": values}, {"coefficients": (0.5,)})
        yield Sample({"x": values}, {"coefficients": (-1.0, 0.0, -2.0, 1.0)})

    def reference(self, x, coefficients=(1.0, 1.0, 1.0)):
        return horner(x, coefficients)

    def gradients(self, dy, *, x, coefficients=(1.0, 1.0, 1.0)):
        slopes = [k * c for k, c in enumerate(coefficients)][1:] or [0.0]
        return {"x": dy * horner(x, slopes)}

    def roundings(self, x, coefficients=(1.0, 1.0, 1.0)):
        # One for the leading coefficient's conversion and two for each step of Horner's rule; the derivative takes one
        # step less, and one product with dy.
        steps = len(coefficients) - 1
        return {"y": 1 + 2 * steps, "dx": 2 * steps}

    bad = bad_calls(
        "polynomial_activation",
        {"x": "float32[3]"},
        {
            "x must be float64, float32, float16 or bfloat16; got int32": "int32[3]",
            "coefficients must be 1 to 8 numbers; got 0": (),
            "coefficients must be 1 to 8 numbers; got 9": {
                "x": "bfloat16[3]",
                "coefficients": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
            },
            "coefficients must be a list of numbers; got 2.0": 2.0,
            "coefficients must be a list of numbers; got (1.0, 'two')": (1.0, "two"),
        },
    )


def horner(x, coefficients):
    y = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        y = y * x + np.asarray(coefficient, x.dtype)
    return y


SPECIFICATION = PolynomialActivation()
