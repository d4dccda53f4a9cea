"""Whether an output is right: sampled elements against a reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.formulas import SLOPES, expressions

Take = Callable[[Any, np.ndarray, int], np.ndarray]  # a tensor's slices along an axis, in float64
Dot = Callable[[Any, Any], float]  # in float64

# float32 leaves no room for TF32 (3e-4); the 16-bit types leave room for peers that round after every step.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}

_REFERENCES = expressions(relu=lambda x: np.maximum(x, 0))


def check(case: Case, inputs: Mapping[str, Any], outputs: Sequence[Any], take: Take, dot: Dot) -> str | None:
    """What is wrong with a contender's outputs, in a sentence; or None."""
    error = _error(case, inputs, outputs, take, dot)
    if error <= TOLERANCES[case.dtype]:  # false for NaN
        return None
    return f"wrong: relative error {error:.1e}"


def _error(case: Case, inputs: Mapping[str, Any], outputs: Sequence[Any], take: Take, dot: Dot) -> float:
    if case.operator == "matmul":
        return _product_error(case, inputs, outputs, take)
    random = np.random.default_rng(0)
    count = case.shape[0]
    places = np.sort(random.integers(count, size=4096))
    places[-1] = count - 1
    sampled = {
        name: value if isinstance(value, float) else take(value, places if name != "a" else np.zeros(1, np.int64), 0)
        for name, value in inputs.items()
    }
    function = SLOPES[case.operator] if case.variant == "backward" else _REFERENCES[case.operator]
    error = _distance(take(outputs[-1], places, 0), function(**sampled))
    if len(outputs) == 2:  # axpby's gradient of a: a sum of random signs, which grows as the root of their number
        da = take(outputs[0], np.zeros(1, np.int64), 0)[0]
        error = max(error, abs(da - dot(inputs["dy"], inputs["x"])) / count**0.5)
    return error


def _product_error(case: Case, inputs: Mapping[str, Any], outputs: Sequence[Any], take: Take) -> float:
    random = np.random.default_rng(0)
    m, n, _ = case.shape
    rows, columns = np.sort(random.integers(m, size=64)), np.sort(random.integers(n, size=64))
    rows[-1], columns[-1] = m - 1, n - 1
    transpose_a, transpose_b = case.transposes
    a = take(inputs["a"], rows, 1).T if transpose_a else take(inputs["a"], rows, 0)
    b = take(inputs["b"], columns, 0).T if transpose_b else take(inputs["b"], columns, 1)
    return _distance(take(outputs[0], rows, 0)[:, columns], a @ b)


def _distance(value: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))
