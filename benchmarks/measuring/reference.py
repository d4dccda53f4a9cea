"""Checks outputs and gradients: sampled rows against the plain formula in float64.

Results shared by all rows, such as a weight's gradient or a mean loss, are summed over all rows in chunks.
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

# The limit of float32 excludes TF32 (3e-4). Those of 16-bit types allow baselines to round after every step.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
FLOAT8_TOLERANCE = 2.0**-4  # largest relative rounding error of float8_e4m3fn

SAMPLE, CHUNK = 2**20, 2**24  # elements
FEW = 4  # rows that are checked at least: heads of attention, whose scores take 2 GiB each at 16 384 positions


@dataclass(frozen=True)
class Expected:
    places: np.ndarray  # indices of the sampled rows
    values: list[Any]  # per result: the sampled rows, or all of it, as tensors in float64 on the case's device
    scales: list[float]  # per result: the norm that errors are relative to


def expected(side: Any, case: Case, values: Mapping[str, Any]) -> Expected:
    """The expected results of a case. `side`: the framework's module of implementations."""
    rows = next(x.shape[x.rows] for x in layouts(case).values() if x.rows is not None)
    row = max(1, prod(case.shape[:2] if case.is_product else case.shape) // rows)
    few = min(FEW, max(1, CHUNK // row))
    places = np.random.default_rng(0).integers(rows, size=min(rows, 4096, max(few, SAMPLE // row)))
    places[-1] = rows - 1
    places = np.unique(places)
    shared = [i for i, layout in enumerate(results(case)) if layout.rows is None]
    found = _evaluate(side, case, values, places, len(places) / rows)
    for i in shared:
        found[i] = 0.0  # frees a gradient that the sum below replaces
    scales = [0.0 if i in shared else side.norm(x) for i, x in enumerate(found)]
    if shared:
        sums: dict[int, Any] = dict.fromkeys(shared, 0.0)
        squares = dict.fromkeys(shared, 0.0)
        step = max(1, CHUNK // row)
        for start in range(0, rows, step):
            chunk = slice(start, min(rows, start + step))
            outputs = _evaluate(side, case, values, chunk, (chunk.stop - start) / rows)
            for i in shared:
                sums[i] = outputs[i] + sums[i]
                squares[i] += side.norm(outputs[i]) ** 2
        for i in shared:
            # A sum of terms with random signs may be near zero: errors are relative to the terms then.
            found[i], scales[i] = sums[i], max(side.norm(sums[i]), squares[i] ** 0.5)
    return Expected(places, found, scales)


def problem_with(side: Any, case: Case, outputs: Sequence[Any], right: Expected) -> str | None:
    """A sentence on an implementation's wrong outputs, or None."""
    wanted = results(case)
    if len(outputs) != len(wanted):
        return f"wrong: {len(outputs)} results instead of {len(wanted)}"
    errors = []
    for output, layout, value, scale in zip(outputs, wanted, right.values, right.scales, strict=True):
        if tuple(output.shape) != layout.shape:
            return f"wrong: shape {list(output.shape)} instead of {list(layout.shape)}"
        places = None if layout.rows is None else right.places
        difference = side.wide(output, places, layout.rows) - value
        errors.append(side.norm(difference) / (scale or 1.0))  # the loss of a single class is zero
    error = np.max(errors)
    limit = FLOAT8_TOLERANCE if OPERATORS[case.operator].in_8_bits else TOLERANCES[case.dtype]
    if error <= limit:  # False for NaN
        return None
    return f"wrong: relative error {error:.1e}"


def _evaluate(
    side: Any, case: Case, values: Mapping[str, Any], places: np.ndarray | slice, fraction: float
) -> list[Any]:
    """The plain formula in float64 on some rows. A mean is scaled by these rows' fraction of all rows."""
    cut = dict(values)
    for name, layout in layouts(case).items():
        cut[name] = side.wide(values[name], None if layout.rows is None else places, layout.rows)
    function: Function = side.formula(case)
    if OPERATORS[case.operator].mean:
        found = side.call(case, lambda *inputs: function(*inputs) * fraction, cut)()
    else:
        found = side.call(case, function, cut)()
    return [side.wide(x, None, None) for x in (found if isinstance(found, (tuple, list)) else [found])]
