"""Runs a model of transformers: inputs, outputs, and the same in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tests.helpers.hugging_face import VOCABULARY

LENGTH = 16


def batch(random: np.random.Generator, device: str = "cpu", padded: bool = False) -> dict[str, torch.Tensor]:
    """Tokens and labels; with padding on the right and the left, each row has its own positions."""
    tokens = torch.from_numpy(random.integers(0, VOCABULARY, (3, LENGTH)))
    inputs = {"input_ids": tokens, "labels": tokens.clone()}
    if padded:
        mask = torch.ones_like(tokens)
        mask[1, 11:] = mask[2, :4] = 0
        inputs |= {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
        # Tokens before padding have no label either: the output of a query without visible keys is undefined.
        inputs["labels"][(mask == 0) | (mask.roll(1, -1) == 0)] = -100
    return {name: value.to(device) for name, value in inputs.items()}


class _WideEverywhere(TorchFunctionMode):
    """Replaces the float32 that transformers rounds to internally by float64, whatever the model's dtype."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        keywords = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return function(*map(_wide, args), **keywords)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def results(model: Any, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The loss, the logits, and the gradient of every parameter that has one; see `outputs` for models without them."""
    model.zero_grad()
    loss, logits = outputs(model, inputs)
    loss.backward()
    gradients = [weight.grad for weight in model.parameters()]
    return [loss.detach(), logits.detach(), *(x.clone() for x in gradients if x is not None)]


def outputs(model: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and logits. For a model without them: the mean with alternating signs of all that it returns, and its
    outputs.

    The logits of padding are left out: a padding query sees no token, and its output depends on the attention.
    """
    torch.manual_seed(0)  # some models draw which parts of an image they mask
    found = model(**inputs)
    loss, logits = getattr(found, "loss", None), getattr(found, "logits", None)
    if torch.is_tensor(loss) and torch.is_tensor(logits):
        return loss, logits if "attention_mask" not in inputs else logits * inputs["attention_mask"][..., None]
    leaves = tree_leaves(tuple(found.values()) if isinstance(found, Mapping) else found)
    floats = [x.flatten() for x in leaves if torch.is_tensor(x) and x.is_floating_point()]
    row = torch.cat([x for x in floats if x.requires_grad or len(floats) == 1])
    signs = torch.ones_like(row)
    signs[1::2] = -1
    return (loss if torch.is_tensor(loss) else (row * signs).mean()), row


def exact_results(model: Any, inputs: Mapping[str, torch.Tensor]) -> list[np.ndarray]:
    """The results of a model with the same weights that computes everything in float64."""
    wide = copy.deepcopy(model).double()
    wide.config._experts_implementation = "eager"  # the others have no float64
    with _WideEverywhere():
        return arrays(results(wide, {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}))


def arrays(tensors: Iterable[torch.Tensor]) -> list[np.ndarray]:
    return [
        x.detach().cpu().numpy() if x.dtype is not torch.bfloat16 else x.detach().cpu().float().numpy() for x in tensors
    ]
