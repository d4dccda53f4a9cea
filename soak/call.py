"""The arrays of a planned call, and its expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak import layout
from soak.layout import Tensor
from soak.plan import MAPPED, Plan, more_samples
from tests.helpers.checks import tuples
from tests.helpers.numerics import LONGEST, compute_dtype, half_ulp, inaccurate, rounded
from tests.helpers.specification import Sample, Specification, pick

COPIES = 3  # calls that vmap folds into one
THREADS = 4  # threads that make the same call concurrently


class Wrong(Exception):
    """A result is wrong. `check`: Python code on `results` that fails if they are wrong; {array} in it stands for the
    tensor x as a float64 array."""

    def __init__(self, sentence: str, check: str = "") -> None:
        super().__init__(sentence)
        self.check = check


@dataclass(frozen=True)
class Expected:
    """An expected result and its tolerance. With `exact` None, any numbers of this shape are right."""

    label: str
    dtype: str
    shape: tuple[int, ...]
    exact: Any = None
    magnitude: Any = None
    roundings: float = 0
    storage: tuple[Any, str] = (0, "float64")

    def check(self, i: int, got: np.ndarray) -> None:
        if (got.dtype.name, got.shape) != (self.dtype, self.shape):
            raise Wrong(
                f"{self.label} is {got.dtype.name} {list(got.shape)} instead of {self.dtype} {list(self.shape)}",
                f"assert list(results[{i}].shape) == {list(self.shape)} and "
                f"{self.dtype!r} in str(results[{i}].dtype), (results[{i}].dtype, results[{i}].shape)",
            )
        if self.exact is None:
            return
        wrong, limit = inaccurate(got, self.exact, self.magnitude, self.roundings, self.storage)
        wrong &= np.isfinite(limit)  # the formula itself may be undefined, such as for equal elements without eps
        if wrong.any():
            at = tuple(map(int, np.unravel_index(np.argmax(wrong), wrong.shape)))
            expected, within = np.asarray(self.exact)[at], limit[at]
            raise Wrong(
                f"{self.label}: {wrong.sum()} of {wrong.size} wrong; at {list(at)} {got[at]} instead of {expected} "
                f"within {float(within):.3g}",
                f"x = results[{i}]; got = {{array}}[{at}]\n"
                f"assert abs(got - {float(expected)!r}) <= {float(within)!r}, got",
            )


@dataclass(frozen=True)
class Directional:
    """An expected derivative along one direction: the sum of `weights` times the results from `start` on."""

    label: str
    start: int
    weights: Sequence[np.ndarray]
    exact: Any
    limit: Any
    relative: float = 0  # additional tolerance, relative to the sum of the terms' absolute values

    def check(self, results: Sequence[np.ndarray]) -> None:
        terms = [weight * x.astype(LONGEST) for weight, x in zip(self.weights, results[self.start :], strict=True)]
        got = float(sum(np.sum(x) for x in terms))
        limit = float(self.limit + self.relative * sum(np.sum(np.abs(x)) for x in terms))
        if not abs(got - self.exact) <= limit:
            weights = [weight.tolist() for weight in self.weights]
            raise Wrong(
                f"{self.label}: {got} along a direction instead of {self.exact} within {limit:.3g}",
                f"got = sum((np.array(w) * {{array}}).sum() for w, x in zip({weights}, results[{self.start}:]))\n"
                f"assert abs(got - {float(self.exact)!r}) <= {limit!r}, got",
            )


@dataclass(frozen=True)
class Call:
    plan: Plan
    way: str  # the plan's, or forward if nothing is differentiable
    options: Mapping[str, Any]
    inputs: Mapping[str, Any]  # in the order of the signature: Tensor, number or None
    others: Mapping[str, Tensor]  # upstream gradients, tangents, directions
    mapped: tuple[str, ...]  # inputs mapped by vmap
    wanted: tuple[str, ...]  # inputs whose gradients are computed
    upstream: tuple[str, ...]  # the upstream gradients among `others`
    expected: tuple[Expected, ...]
    directional: Directional | None

    @property
    def spec(self) -> Specification:
        return self.plan.spec

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by variable name."""
        return {**{name: x for name, x in self.inputs.items() if isinstance(x, Tensor)}, **self.others}

    @property
    def has_plain_tensors(self) -> bool:
        return all(x.is_plain for x in self.tensors.values())

    def check(self, results: Sequence[np.ndarray]) -> None:
        for i, (got, expected) in enumerate(zip(results, self.expected, strict=True)):
            expected.check(i, got)
        if self.directional:
            self.directional.check(results)


def build(plan: Plan) -> Call:
    with np.errstate(all="ignore"):
        return _Builder(plan).call()


OFFSETS = ("offsets", "offsets_q", "offsets_k")  # their values must stay as they are: never mapped, rolled or expanded


class _Builder:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.spec = plan, plan.spec
        self.random = np.random.default_rng([plan.seed, plan.number, 1])
        sample = self._sample()
        self.options = sample.options
        self.is_mapped = plan.way in MAPPED
        free = tuple(name for name in sample.tensors if name not in OFFSETS)
        some = tuple(name for name in free if pick(self.random, True, False)) or free
        self.mapped = some if self.is_mapped else ()
        self.copies = COPIES if self.is_mapped else 1
        self.inputs = {
            name: self._input(name, x) if isinstance(x, np.ndarray) else x for name, x in sample.inputs.items()
        }
        self.wanted = self.spec.differentiable(sample)
        if plan.some_gradients:
            self.wanted = tuple(name for name in self.wanted if pick(self.random, True, False)) or self.wanted
        self.longest = LONGEST if plan.dtype == "float64" else np.float64
        arguments = [self._arguments(i) for i in range(self.copies)]
        self.all_arguments, self.arguments = arguments, arguments[0]
        self.roundings, self.storage = zip(
            *((self.spec.roundings(**x), self.spec.storage_roundings(**x)) for x in arguments), strict=True
        )
        self.exact = self._stacked([tuples(self.spec.reference(**x)) for x in arguments])
        self.magnitudes = self._stacked([tuples(self.spec.magnitude(**x)) for x in arguments])
        self.others: dict[str, Tensor] = {}

    def call(self) -> Call:
        without_gradients = "vmap" if self.is_mapped else "forward"
        way = self.plan.way if self.wanted else without_gradients
        outputs = [
            self._expected(name, exact, size, name, self._dtype_of_output(name))
            for name, exact, size in zip(self.spec.outputs, self.exact, self.magnitudes, strict=True)
        ]
        upstream, directional = (), None
        if way in ("forward", "inference mode", "vmap"):
            expected = outputs
        elif way == "jvp":
            expected, directional = self._jvp(outputs)
        elif way == "double backward":
            upstream = self._upstream()
            expected, directional = self._double(upstream)
        else:
            upstream = self._upstream()
            expected = (outputs + self._gradients(upstream)) * (THREADS if way == "threads" else 1)
        return Call(
            self.plan,
            way,
            self.options,
            self.inputs,
            self.others,
            self.mapped,
            self.wanted,
            upstream,
            tuple(expected),
            directional,
        )

    def _sample(self) -> Sample:
        plan = self.plan
        if plan.shape is None:
            return more_samples(self.spec, plan.seed)[plan.sample_index]
        return (self.spec.draw if plan.any_options else self.spec.sample)(plan.shape, self.random)

    def _input(self, name: str, values: np.ndarray) -> Tensor:
        if values.dtype.kind == "f" and values.dtype != np.float32:
            wide = self.plan.wide_parameters and name in (*self.spec.parameters, *self.spec.terms)
            values = rounded(values, "float32" if wide else self.plan.dtype)
        if name in self.mapped:
            values = np.stack([np.roll(values, i) for i in range(COPIES)])
        return layout.plain(values) if name in OFFSETS else self._laid_out(values)

    def _laid_out(self, values: np.ndarray) -> Tensor:
        return layout.drawn(values, self.random) if self.plan.any_layout else layout.plain(values)

    def _like(self, name: str, tensor: Tensor | np.ndarray, dtype: str) -> str:
        self.others[name] = self._laid_out(rounded(self.random.normal(size=tensor.shape), dtype))
        return name

    def _upstream(self) -> tuple[str, ...]:
        return tuple(
            self._like(f"d{name}", exact, self._dtype_of_output(name))
            for name, exact in zip(self.spec.outputs, self.exact, strict=True)
        )

    def _values(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.values if x.memory.dtype.kind in "iub" else x.values.astype(self.longest)

    def _arguments(self, copy: int) -> dict[str, Any]:
        values = {name: self._values(x) for name, x in self.inputs.items()}
        return {**{name: x[copy] if name in self.mapped else x for name, x in values.items()}, **self.options}

    def _stacked(self, copies: list[tuple[Any, ...]]) -> list[np.ndarray]:
        if not self.is_mapped:
            return [np.asarray(x) for x in copies[0]]
        return [np.stack(outputs) for outputs in zip(*copies, strict=True)]

    def _dtype_of_output(self, name: str) -> str:
        return compute_dtype(self.plan.dtype) if name in self.spec.compute_dtype_outputs else self.plan.dtype

    def _expected(self, label: str, exact: Any, magnitude: Any, key: str, dtype: str) -> Expected:
        exact, roundings = np.asarray(exact), self.roundings[0][key]
        storage = [counts.get(key, 0) for counts in self.storage]
        counts = np.stack([np.broadcast_to(x, exact.shape[1:]) for x in storage]) if self.is_mapped else storage[0]
        if any(isinstance(x, Tensor) and x.has_repeats for x in (*self.inputs.values(), *self.others.values())):
            roundings = roundings**2  # equal terms of a sum have equal rounding errors: n of them add up, not √n
        return Expected(label, dtype, exact.shape, exact, magnitude, roundings, (counts, self.plan.dtype))

    def _gradients(self, upstream: Sequence[str]) -> list[Expected]:
        """The gradients of each mapped call, also with respect to inputs shared by the calls."""
        dys = [self._values(self.others[name]) for name in upstream]
        arguments = [([dy[i] for dy in dys] if self.is_mapped else dys, x) for i, x in enumerate(self.all_arguments)]
        exact = [self.spec.gradients(*dy, **x) for dy, x in arguments]
        size = [self.spec.gradient_magnitude(*dy, **x) for dy, x in arguments]
        per_call = [[tuple(found[name] for name in self.wanted) for found in each] for each in (exact, size)]
        return [
            self._expected(f"gradient of {name}", exact, size, f"d{name}", self.inputs[name].dtype)
            for name, exact, size in zip(self.wanted, *map(self._stacked, per_call), strict=True)
        ]

    def _jvp(self, outputs: list[Expected]) -> tuple[list[Expected], Directional]:
        """Uses <dy, J t> = <Jᵀ dy, t> for any dy. The formulas made of the framework's own operators round some values
        to the storage dtype: eight times, as in tests/torch/test_derivatives.py."""
        names = [self._like(f"t{name}", self.inputs[name], self.inputs[name].dtype) for name in self.wanted]
        tangents = dict(zip(self.wanted, (self._values(self.others[name]) for name in names), strict=True))
        dys = [self.random.normal(size=exact.shape) for exact in self.exact]
        gradients = self.spec.gradients(*dys, **self.arguments)
        sizes = self.spec.gradient_magnitude(*dys, **self.arguments)
        exact = sum(np.sum(gradients[name] * tangent) for name, tangent in tangents.items())
        size = sum(np.sum(np.abs(sizes[name] * tangent)) for name, tangent in tangents.items())
        computed = max(self.roundings[0][f"d{name}"] for name in tangents)
        stored = 8 + max(np.max(self.storage[0].get(f"d{name}", 0), initial=0) for name in tangents)
        dtype = self.plan.dtype
        limit = computed * half_ulp(size, compute_dtype(dtype)) + 2 * stored * half_ulp(size, dtype)
        tangent = [Expected(f"tangent of {x.label}", x.dtype, x.shape) for x in outputs]
        return outputs + tangent, Directional("tangents", len(outputs), dys, exact, limit)

    def _double(self, upstream: Sequence[str]) -> tuple[list[Expected], Directional | None]:
        """The slope of F = <v, Jᵀ dy> along a random direction, by central differences. Only in float64: in other
        dtypes the rounding errors of formulas made of the frameworks' own operators are unknown."""
        directions = [self._like(f"v{name}", self.inputs[name], self.inputs[name].dtype) for name in self.wanted]
        like = [*(self.inputs[name] for name in self.wanted), *(self.others[name] for name in upstream)]
        labels = [*(f"second gradient of {name}" for name in self.wanted), *upstream]
        expected = [Expected(label, x.dtype, x.shape) for label, x in zip(labels, like, strict=True)]
        if self.plan.dtype != "float64":
            return expected, None
        vs = dict(zip(self.wanted, (self._values(self.others[name]) for name in directions), strict=True))
        shifts = [self.random.normal(size=x.shape) for x in like]
        input_shifts = dict(zip(self.wanted, shifts, strict=False))
        upstream_shifts = shifts[len(self.wanted) :]
        dys = [self._values(self.others[name]) for name in upstream]
        step = LONGEST(1e-9)  # rounding contributes an error of 1e-10

        def gradients(function: Callable[..., Any], step: Any) -> dict[str, Any]:
            moved = {name: self.arguments[name] + step * shift for name, shift in input_shifts.items()}
            shifted = [dy + step * shift for dy, shift in zip(dys, upstream_shifts, strict=True)]
            return function(*shifted, **{**self.arguments, **moved})

        def slope_of(step: Any) -> Any:
            ahead, behind = (gradients(self.spec.gradients, s) for s in (step, -step))
            return sum(np.sum(v * (ahead[name] - behind[name])) for name, v in vs.items()) / (2 * step)

        slope = slope_of(step)
        sizes = gradients(self.spec.gradient_magnitude, LONGEST(0))
        size = sum(np.sum(np.abs(v) * sizes[name]) for name, v in vs.items())
        # At a kink, such as a tie of a row's maximum, the quotient grows with the inverse of the step.
        if abs(slope_of(step / 2) - slope) > 1e-7 * (size + abs(slope)):
            return expected, None
        return expected, Directional("second gradients", 0, shifts, slope, 1e-7 * size, 1e-7)
