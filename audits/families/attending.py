"""The attentions of a model whose `forward` calls fusedops's operator, found by running the small model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from audits.families.inputs import NoInputs, inputs_of
from fusedops.torch.conversion.hf import implementation
from fusedops.torch.internals import calls_of_modules

NO_NAME = "its code asks for no attention by a name"
NOT_TAKEN = "its call is not one that the kernel takes"


def attending(model: Any, attentions: Iterable[Any]) -> dict[Any, str | None]:
    """Maps each attention that was called to the reason why fusedops's operator was not, or None if it was.

    Parts of the model that its inputs do not reach, such as an image encoder beside text, are run alone if inputs for
    them are found.

    Args:
        model: a model of transformers.
        attentions: the modules of the model to examine.
    """
    found: dict[Any, bool] = {}
    attentions = set(attentions)
    model.eval()
    for part in [model, *_models(model.children())]:
        if attentions & {*part.modules()} - found.keys():
            found |= _called(part, attentions)
    reasons = implementation.reasons(model.modules())
    return {each: None if runs else reasons.get(each, NO_NAME) or NOT_TAKEN for each, runs in found.items()}


def _models(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    for module in modules:
        if isinstance(module, PreTrainedModel):
            yield module
        yield from _models(module.children())


def _called(part: Any, attentions: set[Any]) -> dict[Any, bool]:
    """Maps each attention that the model calls to True if it calls the operator."""
    try:
        inputs = inputs_of(part)
    except NoInputs:
        return {}
    found: dict[Any, bool] = {}
    inside: list[Any] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if inside and function.namespace == "fusedops" and "attention" in function._opname:
                found[inside[-1]] = True
            return function(*args, **(kwargs or {}))

    def call(original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if module not in attentions:
            return original(module, *args, **kwargs)
        found.setdefault(module, False)
        inside.append(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            inside.pop()

    torch.manual_seed(0)
    with torch.no_grad(), calls_of_modules(call), Watching():
        part(**inputs)
    return found
