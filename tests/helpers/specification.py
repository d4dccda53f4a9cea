"""The interface of an operator's specification. Every suite in `generic` runs over all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Sample:
    """One call: arrays in float64, numbers or, for an absent optional input, None, in the public signature's order.
    Arrays of integers, bools and float32 keep their dtypes in every call."""

    inputs: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __str__(self) -> str:
        if self.name:
            return self.name
        return "-".join("x".join(map(str, np.shape(value))) or "scalar" for value in self.inputs.values())

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.inputs.items() if isinstance(value, np.ndarray))

    @property
    def floating(self) -> tuple[str, ...]:
        return tuple(name for name in self.tensors if self.inputs[name].dtype.kind == "f")


@dataclass(frozen=True)
class Like:
    """A tensor of a bad call, whose values do not matter."""

    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(value: Any) -> Any:
        """The tensor that "float32[2, 3]" stands for; any other value unchanged."""
        match = re.fullmatch(r"(\w+)\[([\d, ]*)\]", value) if isinstance(value, str) else None
        return Like(match[1], tuple(map(int, re.findall(r"\d+", match[2])))) if match else value


@dataclass(frozen=True)
class Bad:
    """A call that must be refused with this error message."""

    inputs: Mapping[str, Any]
    sentence: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.sentence.split(": ", 1)[1].replace(" ", "_")


def bad_calls(operator: str, good: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Bad, ...]:
    """Bad calls, keyed by their error messages. Each gives the inputs that differ from those of a good call, or one
    value of the input that the message begins with.

    "float32[2, 3]" stands for a tensor of this dtype and shape. A value is an option if it is neither a tensor nor
    belongs to an input of the good call.
    """

    def bad(sentence: str, change: Any) -> Bad:
        changed = change if isinstance(change, Mapping) else {sentence.split()[0]: change}
        given = {name: Like.of(value) for name, value in {**good, **changed}.items()}
        inputs = {name: value for name, value in given.items() if name in good or isinstance(value, Like)}
        options = {name: value for name, value in given.items() if name not in inputs}
        return Bad(inputs, f"fusedops.{operator}: {sentence}", options)

    return tuple(bad(sentence, change) for sentence, change in changes.items())


class Specification:
    """Subclassed once per operator, in `tests/specifications/`.

    The functions of inputs get them by keyword, as arrays of one floating type or numbers. They work in any floating
    type: in the longest they are the reference, in the compute dtype they give the expected NaN and infinities.
    """

    name: str
    signature: str  # of the public function
    short_names: Mapping[str, str] = {}  # public variants with fixed options: name -> signature
    outputs: tuple[str, ...] = ("y",)
    compute_dtype_outputs: tuple[str, ...] = ()  # in the compute dtype
    parameters: tuple[str, ...] = ()  # inputs that may be float32 if x is 16-bit
    terms: tuple[str, ...] = ()  # the same of optional inputs, which only some samples have
    not_differentiable: tuple[str, ...] = ()  # floating inputs without a gradient
    least_rank = 0  # from 1 on, the last dimension holds columns, and the operator is one over rows
    fixed_options: Mapping[str, Any] = {}  # attributes of the operator that the function sets
    function_options: Mapping[str, Any] = {}  # options of the function that every call has
    row_options: Mapping[str, Any] = {}  # options with which every output has rows
    bad: tuple[Bad, ...] = ()
    value_suites_only = False  # only the suites of its values apply
    autocast = False  # computes in PyTorch's autocast dtype
    rows_are_independent = True  # a row's bits do not depend on the other rows
    contiguous: tuple[str, ...] = ()  # small inputs that are copied if they have gaps
    packed = False  # rows are concatenated, without a dimension of their own
    bits_follow_from_values = True  # False: bits may depend on strides, which may select another kernel

    def __str__(self) -> str:
        return self.name

    @property
    def shared(self) -> tuple[str, ...]:
        """The inputs that are the same for all rows."""
        return self.parameters

    @property
    def operator(self) -> str:
        """The operator's name in the operator table."""
        return self.name

    @property
    def function(self) -> str:
        """The name of the public function in its error sentences."""
        return self.name

    @property
    def code(self) -> str:
        """The function in a program that imports a package as fo."""
        name, options = f"fo.{self.function}", self.function_options
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        return f"(lambda *inputs, **options: {name}(*inputs, **options, {given}))" if options else name

    def made_by(self, functions: Any) -> Any:
        """The function, in a framework."""
        function, options = getattr(functions, self.function), self.function_options
        return partial(function, **options) if options else function

    def sample(self, shape: tuple[int, ...], random: np.random.Generator) -> Sample:
        """A call whose first large input has this shape, or its leading dimensions and at least as many elements."""
        raise NotImplementedError

    def more_samples(self, random: np.random.Generator) -> Iterable[Sample]:
        """Calls worth testing besides `sample` of a few shapes: options, numbers for tensors."""
        return ()

    def low_curvature_sample(self, random: np.random.Generator) -> Sample:
        """A call whose second derivatives, except sums over all elements, are below 0.1. Times upstream gradients of
        300 and 300, whose product exceeds float16, they are in range."""
        return self.sample((6, 32), random)

    def draw(self, shape: tuple[int, ...], random: np.random.Generator) -> Sample:
        """A call like `sample`'s, with any options, and with numbers or None for inputs that permit them. Options are
        drawn first, from a few values: TensorFlow caches every value's function forever."""
        return self.sample(shape, random)

    def special(self, values: Array, random: np.random.Generator) -> Iterable[Sample]:
        """Calls made of these values: NaN, infinities, zeros, subnormal and largest numbers."""
        raise NotImplementedError

    def reference(self, **inputs: Any) -> Array | tuple[Array, ...]:
        raise NotImplementedError

    def gradients(self, *upstream: Array, **inputs: Any) -> dict[str, Array]:
        raise NotImplementedError

    def roundings(self, **inputs: Any) -> dict[str, float]:
        """The number of roundings of each output, and of each gradient as d<input>, in units of half an ulp of
        magnitude()."""
        raise NotImplementedError

    def storage_roundings(self, **inputs: Any) -> dict[str, Any]:
        """The number of roundings to x's dtype of intermediate values, by contract, such as of an output that the
        backward reads: in units of half an ulp of magnitude() in that dtype; numbers or arrays."""
        return {}

    def differentiable(self, sample: Sample) -> tuple[str, ...]:
        return tuple(name for name in sample.floating if name not in self.not_differentiable)

    def magnitude(self, **inputs: Any) -> Array | tuple[Array, ...]:
        """The magnitude to which rounding errors are relative: the sum of the absolute values of all terms.

        For sums of products it is the reference of the absolute values.
        """
        return self.reference(**absolute(inputs))

    def gradient_magnitude(self, *upstream: Array, **inputs: Any) -> dict[str, Array]:
        return self.gradients(*map(np.abs, upstream), **absolute(inputs))


class ProductSpecification(Specification):
    """An operator whose results are sums of products. The bits of a row depend on the kernel, and so on the other rows
    and on strides."""

    least_rank = 1
    autocast = True
    rows_are_independent = False
    bits_follow_from_values = False


def pick(random: np.random.Generator, *values: Any) -> Any:
    return values[random.integers(len(values))]


def absolute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _absolute(value) for name, value in inputs.items()}


def _absolute(value: Any) -> Any:
    if isinstance(value, bool | str) or value is None or (isinstance(value, np.ndarray) and value.dtype.kind != "f"):
        return value
    return tuple(map(abs, value)) if isinstance(value, tuple | list) else abs(value)


def pairwise(terms: int) -> float:
    """Roundings of a sum of products in tree order: one for the product, plus the depth of the tree.

    Lanes and blocks are leaves with short sequential sums. Their roundings, a random walk of at most a few hundred
    steps, are covered by the constant.
    """
    return 16 + np.log2(max(terms, 1))


def any_order(terms: int) -> float:
    """Roundings of a sum of products in any order: the square root of the number of terms, where the worst case is the
    number itself. Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019."""
    return 2 + np.sqrt(terms)
