"""Code shared by the specifications of rms_norm, layer_norm and their variants with a residual."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.dropout import draw_seed, dropped
from tests.helpers.specification import Array, Bad, Like, Sample, Specification, pairwise, pick


class Norm(Specification):
    least_rank = 1

    def __init__(self, name: str, *, signature: str, centered: bool, eps: float) -> None:
        self.name, self.signature = name, signature
        self.centered = centered  # layer_norm: subtracts the mean and adds a bias
        self.added = name.startswith("add_")
        self.eps = eps
        self.outputs = ("y", "s") if self.added else ("y",)
        self.parameters = ("weight", "bias") if centered else ("weight",)
        self.bad = tuple(self.bad_calls())

    def inputs(self, x: Array, residual: Array | None = None, **parameters: Array | None) -> dict[str, Any]:
        """The inputs in the order of the public signature."""
        given = {"x": x, "residual": residual} if self.added else {"x": x}
        return {**given, **{name: parameters.get(name) for name in self.parameters}}

    def sample(self, shape, random):
        columns = shape[-1]
        parameters = {name: random.normal(size=columns) for name in self.parameters}
        return Sample(self.inputs(random.normal(size=shape), random.normal(size=shape), **parameters))

    def more_samples(self, random):
        def sample(shape, options=None, *, offset=0.0, without=(), name):
            inputs = dict(self.sample(shape, random).inputs)
            inputs["x"] = inputs["x"] + offset
            return Sample({**inputs, **dict.fromkeys(without)}, options or {}, name=name)

        yield sample((3, 17), without=self.parameters, name="no-parameters")
        yield sample((3, 17), without=("weight",), name="no-weight")
        if self.centered:
            yield sample((3, 17), without=("bias",), name="no-bias")
        else:
            yield sample((3, 17), {"weight_offset": 1.0}, name="weight-offset-1")
            yield sample((3, 17), {"weight_offset": -0.3}, name="weight-offset")
            yield sample((3, 17), {"weight_offset": 1}, without=("weight",), name="offset-of-no-weight")
        for eps in (0.0, 1e-3, 0.7, 2):
            yield sample((2, 3, 9), {"eps": eps}, name=f"eps-{eps}")
        if self.added:
            for shape, rate in (((3, 5, 37), 0.5), ((130, 1032), 0.75)):  # products are exact
                seeded = sample(shape, {"dropout": rate}, name=f"dropout-{rate}")
                yield Sample({**seeded.inputs, "seed": draw_seed(random)}, seeded.options, seeded.name)
        yield sample((4, 50), offset=30.0, name="far")
        yield sample((700, 3), name="many-rows")  # several per row chunk
        yield sample((0, 3), name="no-rows")

    def low_curvature_sample(self, random):
        inputs = self.sample((6, 32), random).inputs
        return Sample({**inputs, "x": 100 * inputs["x"]})

    def draw(self, shape, random):
        without = [name for name in self.parameters if pick(random, True, False)]
        options = pick(random, {}, {"eps": 1e-3}, {"eps": 0.7})
        if not self.centered:
            options = {**options, **pick(random, {}, {"weight_offset": 1.0}, {"weight_offset": -0.3})}
        seed = {}
        if self.added and pick(random, True, False):
            options, seed = {**options, "dropout": pick(random, 0.5, 0.75)}, {"seed": draw_seed(random)}
        return Sample({**self.sample(shape, random).inputs, **dict.fromkeys(without), **seed}, options)

    def special(self, values, random):
        def rows(specials):
            """One special value in each row, among ordinary ones."""
            x = random.normal(size=(len(specials), 5))
            x[:, 1] = specials
            return x

        def with_x(x):
            residual = random.normal(size=x.shape)
            weight, bias = random.normal(size=(2, x.shape[-1]))
            return Sample(self.inputs(x, residual, weight=weight, bias=bias))

        finite = values[np.isfinite(values)]
        yield with_x(rows(finite))
        yield with_x(rows(values))
        # A weight of -0 plus an offset of 0 would be 0 if the sum was computed.
        for value in values[(values != 0) | ~np.signbit(values)]:
            weight = np.array([1.0, value, -0.5])
            x, residual = random.normal(size=(2, 2, 3))
            yield Sample(self.inputs(x, residual, weight=weight, bias=weight[::-1].copy()))

    def reference(self, x, residual=None, weight=None, bias=None, eps=None, weight_offset=0.0, **dropout):
        s = self.sum(x, residual, **dropout)
        deviation, rstd = self.moments(s, eps)
        y = deviation * rstd * self.factor(s, weight, weight_offset)
        y = y if bias is None else y + bias
        return (y, s) if self.added else y

    def gradients(
        self, dy, ds=None, *, x, residual=None, weight=None, bias=None, eps=None, weight_offset=0.0, **dropout
    ):
        s = self.sum(x, residual, **dropout)
        deviation, rstd = self.moments(s, eps)
        xhat, wdy = deviation * rstd, dy * self.factor(s, weight, weight_offset)
        slope = wdy - mean(wdy) if self.centered else wdy
        dx = rstd * (slope - xhat * mean(wdy * xhat))
        dx = dx if ds is None else dx + ds
        return {"x": self.dropped(dx, **dropout), "residual": dx, "weight": over_rows(dy * xhat), "bias": over_rows(dy)}

    def magnitude(self, x, residual=None, weight=None, bias=None, eps=None, weight_offset=0.0, **dropout):
        size = np.abs(self.dropped(x, **dropout)) + np.abs(residual) if self.added else np.abs(x)
        xhat, _, _ = self.sizes(x, residual, eps, **dropout)
        y = xhat * self.factor_size(x, weight, weight_offset)
        y = y if bias is None else y + np.abs(bias)
        return (y, size) if self.added else y

    def gradient_magnitude(
        self, dy, ds=0.0, *, x, residual=None, weight=None, bias=None, eps=None, weight_offset=0.0, **dropout
    ):
        xhat, rstd, _ = self.sizes(x, residual, eps, **dropout)
        dy, ds = np.abs(dy), np.abs(ds)
        wdy = dy * self.factor_size(x, weight, weight_offset)
        slope = wdy + mean(wdy) if self.centered else wdy
        dx = rstd * (slope + xhat * mean(wdy * xhat)) + ds
        return {"x": self.dropped(dx, **dropout), "residual": dx, "weight": over_rows(dy * xhat), "bias": over_rows(dy)}

    def roundings(self, x, **others: Any):
        # The mean takes a sum and a division, and so does the mean square, whose root halves the error; eps, the root
        # and its inverse take one each. xhat: both of them, plus its own two operations.
        row = pairwise(x.shape[-1])
        mean = row + 1 if self.centered else 0
        rstd = mean + row / 2 + 4
        xhat = mean + rstd + 2
        rows = pairwise(x.size // max(x.shape[-1], 1))
        dx = rstd + 2 * xhat + row + 8  # rstd * xhat * mean(dy * factor * xhat), three sums of such terms, ds
        return {
            "y": xhat + 3,  # the factor, a sum itself, and the bias
            "s": 1,
            "dx": dx,
            "dresidual": dx,
            "dweight": xhat + rows + 1,
            "dbias": rows,
        }

    def storage_roundings(self, x, residual=None, weight=None, bias=None, eps=None, weight_offset=0.0, **dropout):
        """s is rounded before it is normalized. An error of s moves xhat by the same relative error, and rstd by
        `spread`."""
        if not self.added:
            return {}
        _, _, spread = self.sizes(x, residual, eps, **dropout)
        most = spread.max(initial=0)
        # rstd once and xhat twice: as a factor, and in the mean of products.
        return {"y": 1 + spread, "dx": 2 + 3 * spread, "dresidual": 2 + 3 * spread, "dweight": 1 + most}

    def sum(self, x, residual, **dropout):
        return self.dropped(x, **dropout) + residual if self.added else x

    def dropped(self, x, dropout=0.0, seed=None):
        return dropped(x, dropout, seed) if dropout else x

    def moments(self, s, eps):
        """The deviations from the mean, or s itself, and the inverse of their root mean square."""
        eps = np.asarray(self.eps if eps is None else eps, s.dtype)
        deviation = s - mean(s) if self.centered else s
        return deviation, 1 / np.sqrt(mean(deviation * deviation) + eps)

    def sizes(self, x, residual, eps, **dropout):
        """Magnitudes of xhat, with a mean that may cancel, and of rstd; the possible error of s in half ulps."""
        s = self.sum(x, residual, **dropout)
        deviation, rstd = self.moments(s, eps)
        size = np.abs(s) + mean(np.abs(s)) if self.centered else np.abs(s)
        return size * rstd, rstd, rstd * mean(np.abs(deviation) * rstd * np.abs(s))

    def factor(self, x, weight, offset):
        return np.asarray(1, x.dtype) if weight is None else weight + np.asarray(offset, x.dtype)

    def factor_size(self, x, weight, offset):
        return self.factor(x, None if weight is None else np.abs(weight), abs(offset))

    def bad_calls(self):
        def bad(sentence, x=None, *, options=None, **others):
            x = x or Like("float32", (2, 8))
            seed = {name: others.pop(name) for name in ("seed",) if name in others}
            given = {**self.inputs(**{"x": x, "residual": x, **others}), **seed}
            return Bad(given, f"fusedops.{self.name}: {sentence}", options or {})

        yield bad("x must be float64, float32, float16 or bfloat16; got int32", Like("int32", (2, 8)))
        yield bad("x must have at least one dimension; got shape []", Like("float32", ()))
        yield Bad(
            {**self.inputs(None, Like("float32", (2, 8)))}, f"fusedops.{self.name}: x must be a tensor; got NoneType"
        )
        if self.added:
            yield bad("residual must have x's shape, [2, 8]; got [8]", residual=Like("float32", (8,)))
            yield bad("residual must have x's dtype, float32; got float16", residual=Like("float16", (2, 8)))
            yield bad("residual must be a tensor; got NoneType", residual=None)
            dropping = {"options": {"dropout": 0.5}, "seed": Like("int64", (2,))}
            yield bad("seed must be int64; got int32", **{**dropping, "seed": Like("int32", (2,))})
            yield bad("residual must have x's shape, [2, 8]; got [8]", **dropping, residual=Like("float32", (8,)))
        for name in self.parameters:
            shape = f"{name} must have shape [8], the last dimension of x; got"
            yield bad(f"{shape} [7]", **{name: Like("float32", (7,))})
            yield bad(f"{shape} [1, 8]", **{name: Like("float32", (1, 8))})
            yield bad(f"{shape} []", **{name: Like("float32", ())})
            for dtype, other, expected in (
                ("float32", "float16", "float32"),
                ("float64", "float32", "float64"),
                ("bfloat16", "float16", "bfloat16, or float32"),
                ("float16", "int64", "float16, or float32"),
            ):
                sentence = f"{name} must have x's dtype, {expected}; got {other}"
                yield bad(sentence, Like(dtype, (2, 8)), **{name: Like(other, (8,))})
            yield bad(f"{name} must be a tensor; got str", **{name: "ones"})
        for option in ("eps",) if self.centered else ("eps", "weight_offset"):
            yield bad(f"{option} must be a number; got '1'", options={option: "1"})
            yield bad(f"{option} must be a number; got None", options={option: None})


def mean(values):
    """The mean over the last dimension, which is kept; zero for empty rows."""
    return values.sum(-1, keepdims=True) / np.asarray(max(values.shape[-1], 1), values.dtype)


def over_rows(values):
    return values.reshape(-1, values.shape[-1]).sum(0) if values.size else np.zeros(values.shape[-1:], values.dtype)
