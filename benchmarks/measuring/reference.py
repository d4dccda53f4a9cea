"""Whether outputs and gradients are right: sampled rows against the plain formula in float64.

What all rows share (a weight's gradient, a mean loss) is summed over all of them, a part at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from benchmarks.cases.case import Case
from benchmarks.operators import OPERATORS
from benchmarks.operators.layouts import layouts, results
from benchmarks.operators.record import Function

# float32 leaves no room for TF32 (3e-4); the 16-bit types leave room for peers that round after every step.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
IN_8_BITS = 2.0**-4  # the most that an element of float8_e4m3fn errs

SAMPLE, PART = 2**20, 2**24  # elements


@dataclass(frozen=True)
class Expected:
    places: np.ndarray  # the sampled rows
    values: list[np.ndarray]  # of each result: the sampled rows, or all
    scales: list[float]  # errors are relative to these


def expected(side: Any, case: Case, values: Mapping[str, Any]) -> Expected:
    """`side` is the framework's module: it draws, cuts and evaluates."""
    rows = next(x.shape[x.rows] for x in layouts(case).values() if x.rows is not None)
    row = max(1, prod(case.shape[:2] if case.is_product else case.shape) // rows)
    few = min(16, max(1, PART // row))
    places = np.random.default_rng(0).integers(rows, size=min(rows, 4096, max(few, SAMPLE // row)))
    places[-1] = rows - 1
    places = np.unique(places)
    found = [side.numpy(x) for x in _evaluate(side, case, values, places, len(places) / rows)]
    scales = [float(np.linalg.norm(x)) for x in found]
    shared = [i for i, layout in enumerate(results(case)) if layout.rows is None]
    if shared:
        sums: dict[int, Any] = dict.fromkeys(shared, 0.0)
        squares = dict.fromkeys(shared, 0.0)
        step = max(1, PART // row)
        for start in range(0, rows, step):
            part = slice(start, min(rows, start + step))
            outputs = _evaluate(side, case, values, part, (part.stop - start) / rows)
            for i in shared:
                one = side.numpy(outputs[i])
                sums[i] = sums[i] + one
                squares[i] += float(np.sum(one * one))
        for i in shared:
            # A sum of random signs may come out near zero: no error is relative to that.
            found[i], scales[i] = sums[i], max(float(np.linalg.norm(sums[i])), squares[i] ** 0.5)
    return Expected(places, found, scales)


def problem_with(side: Any, case: Case, outputs: Sequence[Any], right: Expected) -> str | None:
    """What is wrong with a contender's outputs, in a sentence; or None."""
    wanted = results(case)
    if len(outputs) != len(wanted):
        return f"wrong: {len(outputs)} results instead of {len(wanted)}"
    errors = []
    for output, layout, value, scale in zip(outputs, wanted, right.values, right.scales, strict=True):
        if tuple(output.shape) != layout.shape:
            return f"wrong: shape {list(output.shape)} instead of {list(layout.shape)}"
        places = None if layout.rows is None else right.places
        difference = side.numpy(side.wide(output, places, layout.rows)) - value
        errors.append(np.linalg.norm(difference) / (scale or 1.0))  # the loss of one class is zero
    error = np.max(errors)
    most = IN_8_BITS if OPERATORS[case.operator].in_8_bits else TOLERANCES[case.dtype]
    if error <= most:  # false for NaN
        return None
    return f"wrong: relative error {error:.1e}"


def _evaluate(
    side: Any, case: Case, values: Mapping[str, Any], places: np.ndarray | slice, share: float
) -> Sequence[Any]:
    """The plain formula in float64 on some rows; a mean over all rows counts for their share."""
    cut = dict(values)
    for name, layout in layouts(case).items():
        cut[name] = side.wide(values[name], None if layout.rows is None else places, layout.rows)
    function: Function = side.formula(case)
    if OPERATORS[case.operator].mean:
        found = side.call(case, lambda *inputs: function(*inputs) * share, cut)()
    else:
        found = side.call(case, function, cut)()
    return found if isinstance(found, (tuple, list)) else [found]
