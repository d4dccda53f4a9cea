"""The rules of a conversion: counterparts of known classes, their originals, and reasons to skip others."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fusedops import conversion
from fusedops.torch import nn
from fusedops.torch.conversion import functions, hf, sequential, transformer
from fusedops.torch.conversion.functions import called
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.conversion.linear import PlainLinear, is_served
from fusedops.torch.nn import plans
from fusedops.torch.nn.layer import FusedLayer

_TORCH_LAYERS: dict[type, type] = {
    torch.nn.CrossEntropyLoss: nn.CrossEntropyLoss,
    torch.nn.Dropout: nn.Dropout,
    torch.nn.LayerNorm: nn.LayerNorm,
    torch.nn.MultiheadAttention: nn.MultiheadAttention,
    torch.nn.RMSNorm: nn.RMSNorm,
    torch.nn.Softmax: nn.Softmax,
    torch.nn.TransformerDecoderLayer: transformer.TransformerDecoderLayer,
    torch.nn.TransformerEncoderLayer: transformer.TransformerEncoderLayer,
}
# The report mentions neither unconverted instances nor subclasses of these.
_LINEAR: dict[type, type] = {torch.nn.Linear: PlainLinear}
_ORIGINALS = {counterpart: kind for kind, counterpart in (_TORCH_LAYERS | _LINEAR).items()}

_SERVED = "torch's own kernel serves as well"
_SKIPPED: dict[type, str] = {
    torch.nn.GELU: _SERVED,
    torch.nn.ReLU: _SERVED,
    torch.nn.SiLU: _SERVED,
    torch.nn.Sigmoid: _SERVED,
    torch.nn.Tanh: _SERVED,
}


class Modules(conversion.Rules):
    noun = "modules"
    own = _TORCH_LAYERS | _LINEAR
    library = "transformers"

    def __init__(self, model: torch.nn.Module, functions: bool = False, fuse_loss: bool = False) -> None:
        self._functions = functions
        self._fuse_loss = fuse_loss
        self._names = {module: path or type(model).__name__ for path, module in model.named_modules()}
        self._functions_of = functools.cache(called)
        self._look_up = functools.cache(hf.look_up)  # per model: functions may be replaced in between
        owners = {x: module for module in model.modules() for x in module.parameters(recurse=False) if not is_lazy(x)}
        self._parameters = Counter[torch.nn.Module]()
        for x, module in owners.items():
            self._parameters[module] += x.numel()

    def is_ours(self, thing: Any) -> bool:
        return isinstance(thing, FusedLayer)

    def is_known(self, kind: type) -> bool:
        return kind in _TORCH_LAYERS or isinstance(self._look_up(kind), hf.Match)

    def has_counterpart(self, kind: type) -> bool:
        if kind in self.own or self.is_known(kind) or sequential.is_sequential(kind):
            return True
        return self._functions and len(self._functions_of(kind)) > 0

    def counterpart(self, kind: type) -> type:
        if kind in self.own:
            return self.own[kind]
        if sequential.is_sequential(kind):
            return sequential.Sequential.of(kind)
        if not self.is_known(kind):
            return functions.OwnForward.of(kind)
        found = self._look_up(kind)
        is_language_model = isinstance(found, hf.Match) and found.mixin == hf.LANGUAGE_MODEL
        without_logits = hf.without_logits(kind) if self._fuse_loss and is_language_model else None
        return without_logits or hf.counterpart(kind, found)

    def original(self, kind: type) -> type | None:
        return _ORIGINALS.get(kind) or vars(kind).get("original")

    def become(self, thing: Any, kind: type) -> None:
        plans.become(thing, kind)

    def becomes(self, thing: Any) -> str:
        if isinstance(thing, functions.OwnForward):
            return f"the same code with fusedops's {', '.join(thing.functions)}"
        like = getattr(thing, "like", "")
        return super().becomes(thing) + (f" (as {like})" if like not in ("", type(thing).__name__) else "")

    def condition(self, thing: Any) -> str:
        if isinstance(thing, PlainLinear):
            return thing.condition
        if isinstance(thing, sequential.Sequential):
            return thing.condition()
        if isinstance(thing, torch.nn.MultiheadAttention):
            return "if it is called with need_weights=False"
        if isinstance(thing, torch.nn.TransformerEncoderLayer):
            return "in training"
        dim = thing.dim if isinstance(thing, torch.nn.Softmax) else None
        return "" if dim is None or dim < 0 else f"if dim {dim} is the last of its input"

    def name(self, thing: Any) -> str:
        return self._names[thing]

    def parameters(self, thing: Any) -> int:
        return self._parameters[thing]

    def is_container(self, thing: Any) -> bool:
        return next(thing.children(), None) is not None

    def fixed(self, thing: Any) -> str | None:
        kind = type(thing)
        if kind in _LINEAR and is_served(thing):
            return None
        if sequential.is_sequential(kind) and not any(sequential.candidates(thing)):
            return None
        if "forward" in vars(thing) and not plans.kept_forwards(thing):
            return "its forward is an attribute of its own, set by user code"
        return None

    def skip_reason(self, thing: Any) -> str | None:
        if isinstance(thing, torch.jit.ScriptModule):
            return "TorchScript has compiled it"
        subclass = super().skip_reason(thing)
        if subclass and any(base.__name__ == "FSDPModule" for base in type(thing).__mro__):
            return "sharded by fully_shard: convert the model before"
        kind: type = type(thing)
        found = self._look_up(kind)
        unknown = found if isinstance(found, str) else None
        if subclass and unknown:
            return f"{subclass}; it {unknown}"
        return subclass or unknown or _SKIPPED.get(kind)

    def computed(self, things: Sequence[Any]) -> Collection[Any]:
        ours = [thing for thing in things if self.is_ours(thing) and not thing.why_not()]
        return {part for thing in ours if isinstance(thing, HFLayer) for part in thing.computed()}
