"""The specification of an expression: reference, derivative and tolerance all follow from its text.

Tests of expressions verify the meaning of the text and its derivative without a framework. Here a program in NumPy
gives the results that a kernel must give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fusedops import expressions
from tests.helpers.rounding import evaluated
from tests.helpers.specification import Array, Bad, Like, Sample, Specification, pick


def columns(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[-1:]


def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], 1)


class Expression(Specification):
    """Args: name: the function's name. text: the expression. shapes: the shapes of inputs that differ from a sample's,
    as functions of it. integers: the dtypes of boolean or integer inputs.
    """

    def __init__(
        self,
        name: str,
        text: str,
        shapes: Mapping[str, Callable[[tuple[int, ...]], tuple[int, ...]]] | None = None,
        outputs: Sequence[str] = ("y",),
        least_rank: int = 1,
        low_curvature_scale: float = 1.0,
        value_suites_only: bool = False,
        integers: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.text, self.outputs, self.least_rank = name, text, tuple(outputs), least_rank
        self.shapes, self.integers = shapes or {}, integers or {}
        self.parameters = tuple(self.shapes)
        self.expression = expressions.Expression(text, None, name)
        self.definition = self.expression.definition()
        self.scale, self.value_suites_only = low_curvature_scale, value_suites_only
        self.bad = tuple(self.bad_calls())

    @property
    def operator(self) -> str:
        return self.definition.name

    @property
    def code(self) -> str:
        return f"fo.elementwise({self.text!r}, name={self.name!r})"

    def made_by(self, functions: Any) -> Any:
        return functions.elementwise(self.text, name=self.name)

    def sample(self, shape, random):
        shapes = {name: self.shapes[name](shape) if name in self.shapes else shape for name in self.expression.inputs}
        return Sample({name: self.values(name, size, random) for name, size in shapes.items()})

    def draw(self, shape, random):
        """Any input of one element except the first may be a number, which is rounded to the compute dtype."""
        inputs = dict(self.sample(shape, random).inputs)
        for name in list(inputs)[1:]:
            if np.ndim(inputs[name]) == 0 and name not in self.integers:
                inputs[name] = pick(random, inputs[name], float(np.float32(inputs[name])))
        return Sample(inputs)

    def values(self, name: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        if name in self.integers:
            return np.asarray(
                random.integers(0 if self.integers[name] == "bool" else -2, 2, shape), self.integers[name]
            )
        return np.asarray(random.normal(size=shape))

    def more_samples(self, random):
        """Every other broadcast: each dimension of each input, and all of them."""
        for name in self.expression.inputs:
            inputs = dict(self.sample((3, 4, 5), random).inputs)
            for shape in ((1,), (3, 1, 5), (3, 4, 1)) if len(inputs) > 1 and inputs[name].ndim == 3 else ():
                # Rows that are all equal, and not near 0.
                value = self.values(name, shape, random) if name in self.integers else random.uniform(0.5, 2, shape)
                given = {**inputs, name: value}
                yield Sample(given, name=f"{name}-of-{'x'.join(map(str, shape))}")

    def low_curvature_sample(self, random):
        inputs = self.sample((6, 32), random).inputs
        return Sample({name: x if name in self.integers else self.scale * x for name, x in inputs.items()})

    def special(self, values, random):
        """Each value in each input, in otherwise ordinary rows."""
        floating = [name for name in self.expression.inputs if name not in self.integers]
        for name, value in itertools.product(floating, values):
            inputs = dict(self.sample((2, 3) if self.least_rank else (6,), random).inputs)
            x = inputs[name].copy()
            x[(0,) * x.ndim] = value
            yield Sample({**inputs, name: x}, name=f"{name}={value}")

    def reference(self, **inputs):
        results = self.of_values(self.definition, inputs.values())
        return results[0][0] if len(results) == 1 else tuple(y for y, _ in results)

    def magnitude(self, **inputs):
        results = self.of_values(self.definition, inputs.values())
        sizes = tuple(error / self.count(self.definition) for _, error in results)
        return sizes[0] if len(sizes) == 1 else sizes

    def gradients(self, *upstream, **inputs):
        results = self.of_values(self.definition.backward(), [*inputs.values(), *upstream])
        named = zip(inputs, results, strict=True)
        return {name: y for name, (y, _) in named if name not in self.integers}

    def gradient_magnitude(self, *upstream, **inputs):
        definition = self.definition.backward()
        results = self.of_values(definition, [*inputs.values(), *upstream])
        named = zip(inputs, results, strict=True)
        return {name: error / self.count(definition) for name, (_, error) in named if name not in self.integers}

    def roundings(self, **inputs):
        backward = self.count(self.definition.backward())
        gradients = {f"d{name}": backward for name in inputs}
        return {**dict.fromkeys(self.outputs, self.count(self.definition)), **gradients}

    @staticmethod
    def of_values(definition: expressions.Definition, arrays: Iterable[Any]) -> list[tuple[Array, Array]]:
        with np.errstate(all="ignore"):
            return evaluated(definition, list(arrays))

    @staticmethod
    def count(definition: expressions.Definition) -> int:
        """The number of values that may underflow: each errs by half the smallest number, at any magnitude."""
        return sum(map(len, definition.program.stages))

    def bad_calls(self) -> Iterable[Bad]:
        inputs = self.expression.inputs
        shapes = {name: self.shapes[name]((2, 3)) if name in self.shapes else (2, 3) for name in inputs}
        good = {name: Like(self.integers.get(name, "float32"), shape) for name, shape in shapes.items()}
        first, *others = inputs

        def bad(name: str, value: Any, sentence: str) -> Bad:
            return Bad({**good, name: value}, f"fusedops.{self.name}: {sentence}")

        floating = "must be float64, float32, float16 or bfloat16; got int32"
        integers = {name: Like("int32", shape) for name, shape in shapes.items()}
        yield Bad(integers, f"fusedops.{self.name}: {first} {floating}")
        any_dtype = "must be float64, float32, float16, bfloat16, bool or an integer; got complex64"
        yield bad(first, Like("complex64", (2, 3)), f"{first} {any_dtype}")
        for name in others[:1]:
            yield bad(name, Like("float64", (2, 3)), f"{name} must have {first}'s dtype, float32; got float64")
            shape = "must broadcast with the inputs before it, which have shape [2, 3]; got"
            yield bad(name, Like("float32", (2, 4)), f"{name} {shape} [2, 4]")
            yield bad(name, Like("float32", (3, 2, 1, 5)), f"{name} {shape} [3, 2, 1, 5]")
        yield bad(first, None, f"{first} must be a tensor; got NoneType")
        if self.definition.program.reductions:
            scalars = {name: Like(self.integers.get(name, "float32"), ()) for name in inputs}
            sentence = "must have at least one dimension, to be reduced over the last one; got shape []"
            yield Bad(scalars, f"fusedops.{self.name}: {first} {sentence}")
