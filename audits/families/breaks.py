"""Graph breaks of torch.compile in a family's model, before and after `convert`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

import fusedops.torch as fo
from audits.families.hugging_face import families, prepare
from audits.families.inputs import inputs_of


def breaks(name: str) -> tuple[list[str], list[str]]:
    """The breaks before and after, each as its reason and its place in the code."""
    prepare()
    model = families()[name].build()
    inputs = inputs_of(model)
    before = _breaks(model, inputs)
    return before, _breaks(fo.convert(model, verbose=False), inputs)


def new(before: list[str], after: list[str]) -> list[str]:
    """The breaks in `after` that are not in `before`."""
    return [*(Counter(after) - Counter(before)).elements()]


def _breaks(model: Any, inputs: dict[str, torch.Tensor]) -> list[str]:
    torch._dynamo.reset()
    found = torch._dynamo.explain(model)(**inputs)
    return [_sentence(reason) for reason in found.break_reasons]


def _sentence(reason: Any) -> str:
    lines = [text.strip() for text in reason.reason.splitlines() if text.strip()]
    place = reason.user_stack[-1] if reason.user_stack else None
    return f"{lines[0]}, in {place.name}: {place.line}" if place else lines[0]
