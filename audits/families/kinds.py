"""The kinds of work a module does, derived from its class and its code, independently of `convert`.

A module may have several kinds: an attention may also rotate its queries and keys.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

import torch
from transformers import PreTrainedModel

from audits.families.code import code_of
from audits.families.counting import ACTIVATIONS, ATTENTIONS, EXPERTS, GATED, LOSSES, NORMS, PAIRS, ROTARY

_NORM = re.compile(r"Norm")
_OTHER_AXES = re.compile(r"Batch|Group|Instance|Weight|Spectral|Spatial|Ada")
_MIXES_POSITIONS = re.compile(r"Attention|Attn|Mixer|Mamba|DeltaNet|SSM|Conv")


def kinds_of(module: torch.nn.Module) -> Counter[str]:
    """The number of units of each kind in a module: a block may have several pairs of residual and norm."""
    kind = getattr(type(module), "original", type(module))
    is_model = isinstance(module, PreTrainedModel)
    code = code_of(kind, "forward")
    found = Counter(
        {
            NORMS: is_norm(module),
            ACTIVATIONS: _is_activation(module),
            PAIRS: sum(is_norm(getattr(module, name, None)) for name in code.added_then_called),
            LOSSES: is_model and "labels" in inspect.signature(kind.forward).parameters,
            ROTARY: code.has_rotation and not is_model,
            ATTENTIONS: "Attention" in kind.__name__ and _projections(module) >= 2,
        }
    )
    if _has_experts(module):
        found[EXPERTS] += 1
    elif code.has_gate and not is_model and _projections(module) >= 2 and not _MIXES_POSITIONS.search(kind.__name__):
        found[GATED] += 1
    return +found


def is_norm(module: Any) -> bool:
    """True for a norm over whole rows, as fusedops's are, not over batches or groups of channels."""
    if not isinstance(module, torch.nn.Module) or next(module.children(), None) is not None:
        return False
    name = getattr(type(module), "original", type(module)).__name__
    has_vectors_only = all(weight.dim() <= 1 for weight in module.parameters())
    return bool(_NORM.search(name)) and not _OTHER_AXES.search(name) and has_vectors_only


def _is_activation(module: torch.nn.Module) -> bool:
    kind = type(module)
    if kind.__module__ == torch.nn.modules.activation.__name__:
        return "Softmax" not in kind.__name__ and next(module.children(), None) is None
    return kind.__module__ == "transformers.activations"


def _projections(module: torch.nn.Module) -> int:
    """The number of weight matrices of the module's direct children."""
    return sum(weight.dim() == 2 for child in module.children() for weight in child.parameters(recurse=False))


def _has_experts(module: torch.nn.Module) -> bool:
    """True if the module stacks the matrices of several experts in one tensor."""
    name = getattr(type(module), "original", type(module)).__name__
    return "Expert" in name and any(weight.dim() == 3 for weight in module.parameters(recurse=False))
