"""Compares loss, outputs and gradients of a model before and after `convert`, step by step."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import torch

import fusedops.torch as fo
from audits.families.hugging_face import families, prepare
from audits.families.inputs import inputs_of
from fusedops.torch.conversion import reported
from tests.helpers import torch_models
from tests.helpers.accuracy import assert_as_accurate

STEPS = 3
LIMIT = 1e-5  # relative to the norm of all results of a kind, in float32: a hundred roundings
_RATE = 1e-2  # length of a gradient descent step, relative to the norm of the weights


class Verdict(TypedDict):
    """The result of one family."""

    converted: int  # modules
    float32: list[float]  # per step: the greatest relative difference of loss, outputs and gradients
    faults: list[str]


def check(name: str) -> Verdict:
    """Calls `compare`; runs in a separate process."""
    prepare()
    return compare(name)


def compare(name: str) -> Verdict:
    """Compares a family's small model before and after `convert`.

    In float32, three steps of gradient descent are made. Loss, outputs and gradients of each must agree within 1e-5 of
    their norm. If they do not, the converted model's error against float64 must be at most twice the other's. In
    bfloat16, only these errors are compared.
    """
    family = families()[name]
    model = family.build()
    ours = copy.deepcopy(model)
    converted = reported(ours).replaced_ones
    verdict: Verdict = {"converted": converted, "float32": [], "faults": []}
    if not converted:
        return verdict
    inputs = inputs_of(model)
    verdict["float32"] = [difference(got, plain) for got, plain in steps(ours, model, inputs)]
    if max(verdict["float32"]) > LIMIT:
        _as_accurate(family.build(), inputs, "float32", verdict)
    _as_accurate(family.build("bfloat16"), {k: _rounded(x) for k, x in inputs.items()}, "bfloat16", verdict)
    return verdict


def steps(ours: Any, theirs: Any, inputs: Mapping[str, torch.Tensor]) -> Any:
    """The results of both models in every step of gradient descent; each model follows its own gradient."""
    for _ in range(STEPS):
        found = [torch_models.results(model, inputs) for model in (ours, theirs)]
        yield tuple(torch_models.arrays(results) for results in found)
        for model in (ours, theirs):
            _descend(model)


def _descend(model: Any) -> None:
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    with torch.no_grad():
        size, slope = (sum(x.square().sum().item() for x in of) ** 0.5 for of in (weights, [w.grad for w in weights]))
        for weight in weights:
            weight -= _RATE * size / max(slope, 1e-30) * weight.grad


def difference(got: list[np.ndarray], plain: list[np.ndarray]) -> float:
    """The greatest relative difference of three: the loss, all outputs together, and all gradients together."""
    parts = (slice(0, 1), slice(1, 2), slice(2, None))
    return max(_relative(got[part], plain[part]) for part in parts)


def _relative(got: list[np.ndarray], plain: list[np.ndarray]) -> float:
    error = sum(float(np.square(x.astype(float) - y).sum()) for x, y in zip(got, plain, strict=True))
    size = sum(float(np.square(y.astype(float)).sum()) for y in plain)
    return (error / size) ** 0.5 if size else float(error > 0)


def _as_accurate(model: Any, inputs: Mapping[str, torch.Tensor], dtype: str, verdict: Verdict) -> None:
    exact = torch_models.exact_results(model, inputs)
    plain = torch_models.arrays(torch_models.results(model, inputs))
    got = torch_models.arrays(torch_models.results(fo.convert(model, verbose=False), inputs))
    try:
        assert_as_accurate(got, plain, exact, dtype)
    except AssertionError as error:
        verdict["faults"].append(f"{dtype}: {error}")


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16() if x.is_floating_point() else x
