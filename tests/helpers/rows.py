"""Calls of operators over rows, for tests of unusual rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward
from tests.helpers.specification import Array, Sample, Specification
from tests.specifications import SPECIFICATIONS

BY_ROWS = [spec for spec in SPECIFICATIONS if spec.least_rank > 0 and spec.rows_are_independent]
LENGTHS = (1, 7, 33, 1000, 4097, 40_000, 65_536, 262_144)


def named(*names: str) -> Any:
    """Parametrizes a test over these specifications."""
    by_name = {spec.name: spec for spec in SPECIFICATIONS}
    return pytest.mark.parametrize("spec", [by_name[name] for name in names], ids=str)


# Options for which a reference is fast: NumPy has no erf of long doubles.
QUICK = {"bias_act": {"activation": "relu"}}


def rows(spec: Specification, count: int, columns: int, random: np.random.Generator) -> Sample:
    sample = spec.sample((count, *(1,) * (spec.least_rank - 2), columns), random)
    return Sample(sample.inputs, {**sample.options, **QUICK.get(spec.name, {})})


def with_x(sample: Sample, x: Array, **options: Any) -> Sample:
    """The sample with other values in its rows."""
    first = next(iter(sample.inputs))
    assert sample.inputs[first].shape == x.shape
    return Sample({**sample.inputs, first: x}, {**sample.options, **options}, sample.name)


def with_exact_sum(sample: Sample) -> Sample:
    """The sample without a residual, so that x + residual is not rounded."""
    residual = {name: np.zeros_like(value) for name, value in sample.inputs.items() if name == "residual"}
    return Sample({**sample.inputs, **residual}, sample.options)


def check(backend: Any, spec: Specification, sample: Sample, dtype: str, narrow: bool = False) -> None:
    inputs = backend.tensors(sample, dtype, spec if narrow else None)
    check_forward(backend, spec, sample, inputs)
    check_backward(backend, spec, sample, inputs)
