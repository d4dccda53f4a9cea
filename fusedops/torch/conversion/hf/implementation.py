"""Which attention a model of transformers has: the name in its config, which `convert` exchanges for ours.

A model may have several configs, each of some of its modules; a config that other models share is theirs, too. Nothing
is written to a file of the name, and what it was follows from what it is.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any

import torch

_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_BASES = ("torch", "fusedops", "transformers.modeling_utils", "transformers.generation")  # where no attention is
_MOST_FEATURES = 256


@dataclass
class Owner:
    """A config, and the modules that have it."""

    config: Any
    models: list[Any] = field(default_factory=list)
    attentions: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    @property
    def implementation(self) -> str | None:
        return getattr(self.config, "_attn_implementation", None)


@dataclass(frozen=True)
class Change:
    """What became of the attention of a config: it is ours, or is kept for a reason."""

    attentions: tuple[Any, ...]
    before: str
    reason: str = ""
    is_found: bool = False  # it was ours before

    def __str__(self) -> str:
        counts = Counter(getattr(type(each), "original", type(each)).__name__ for each in self.attentions)
        which = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        if self.reason:
            return f"kept the attention of {which}, {self.before}: {self.reason}"
        became = " is fusedops.torch's already" if self.is_found else f": {self.before} -> fusedops.torch.attention"
        return f"the attention of {which}{became}"


def convert(modules: Sequence[torch.nn.Module]) -> list[Change]:
    """Has the models among these modules use our attention, where it computes what theirs does."""
    owners = _owners(modules)
    ours = names()
    reasons = {id(owner.config): why_not(owner) for owner in owners}
    found = []
    for owner in owners:
        before = str(owner.implementation)
        within = [each for model in owner.models for each in _attentions(model.modules())]
        # One without an attention of its own may make the masks for those of its parts.
        of_parts = next((reason for each in within if (reason := reasons[id(each.config)])), None)
        reason = reasons[id(owner.config)] or (None if owner.attentions else of_parts)
        if reason is None and within and before in ours:
            choose([(owner.config, ours[before])])
        if owner.attentions:
            change = Change(tuple(owner.attentions), before, reason or "")
            found.append(replace(change, is_found=before in ours.values()))
    return found


def revert(modules: Iterable[torch.nn.Module]) -> None:
    """Gives every config the name back that it had."""
    originals = {new: name for name, new in names().items()}
    choose([(config, originals[name]) for config, name in chosen(modules) if name in originals])


def is_ours(module: torch.nn.Module) -> bool:
    """Whether a module is an attention that asks its config for the name, and that name is ours."""
    return any(owner.attentions and owner.implementation in names().values() for owner in _owners([module]))


def reasons(modules: Iterable[torch.nn.Module]) -> dict[Any, str | None]:
    """Of the attentions that ask for a name: why they keep transformers' own, if they do."""
    found = ((owner.attentions, why_not(owner)) for owner in _owners(modules))
    return {each: reason for attentions, reason in found for each in attentions}


Chosen = list[tuple[Any, str | None]]  # configs and their names


def chosen(modules: Iterable[torch.nn.Module]) -> Chosen:
    return [(owner.config, owner.implementation) for owner in _owners(modules)]


def choose(names: Chosen) -> None:
    for config, name in names:
        config._attn_implementation_internal = name


def why_not(owner: Owner) -> str | None:
    """Why the attentions of a config keep transformers' own, if so."""
    try:
        from fusedops.torch.conversion.hf import attention
    except ImportError as error:
        return f"this version of transformers is not known: {error}"
    name = owner.implementation
    if name in attention.NAMES.values():
        return None
    if name not in attention.NAMES:
        return f"it is {name}, which somebody has chosen"
    if getattr(owner.config, "output_attentions", False):
        return "its config asks for the weights of the attention"
    for model in owner.models:
        if not model._can_set_attn_implementation():
            return f"{type(model).__name__} has code of its own for it"
        if not model._supports_flash_attn:
            return f"transformers has no flash attention for {type(model).__name__}, nor short masks"
    for module in (*owner.models, *owner.others, *owner.attentions):
        if "sdpa" in _said(module):
            return f"the code of {type(module).__name__} asks for its name"
    has_sdpa = all(model._supports_sdpa for model in owner.models)  # which relies on `is_causal`, too
    for module in owner.attentions:
        if not has_sdpa and getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True):
            return "it leaves it to its mask whether it is causal"
        if reason := _unfused(module, name):
            return reason
    return None


def _unfused(module: Any, name: str) -> str | None:
    from fusedops.torch.conversion.hf import attention

    said = _said(module)
    for word, reason in {"s_aux": "sinks", "sinks": "sinks", "position_bias": "a bias of positions"}.items():
        if word in said:
            return f"it has {reason}, which the kernel has not"
    if _has_window(module.config) and "sliding_window" not in said:
        return "it does not pass on its sliding window"
    features = getattr(module, "head_dim", None)
    if isinstance(features, int) and features > _MOST_FEATURES:
        return f"its heads have {features} features; the kernel takes up to {_MOST_FEATURES}"
    if name == "eager" and attention.eager(module) is None:
        return "its own function is not to be found"
    return None


def _has_window(config: Any) -> bool:
    try:
        return getattr(config, "sliding_window", None) is not None
    except Exception:  # a config whose layers differ refuses to be asked
        return True


def names() -> Mapping[str, str]:
    """Ours by transformers' own, which it knows then; of a version that is not known, none."""
    if "transformers" not in sys.modules:
        return {}
    try:
        from fusedops.torch.conversion.hf import attention
    except ImportError:
        return {}
    return attention.NAMES


def _owners(modules: Iterable[torch.nn.Module]) -> list[Owner]:
    """None where transformers is not there, or is something else of that name."""
    if "transformers" not in sys.modules:
        return []
    try:
        from fusedops.torch.conversion.hf.internals import PreTrainedModel
    except ImportError:
        return []
    found: dict[int, Owner] = {}
    for module in modules:
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        owner = found.setdefault(id(config), Owner(config))
        if isinstance(module, PreTrainedModel):
            owner.models.append(module)
        elif _REGISTRY in _said(module):
            owner.attentions.append(module)
        else:
            owner.others.append(module)
    return list(found.values())


def _attentions(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    for module in modules:
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal") and _REGISTRY in _said(module):
            yield module


def _said(module: Any) -> frozenset[str]:
    """The names and the strings in the code of a module's class: what it asks for, and what it passes on by name."""
    kind: type = type(module)
    return _said_by_class(kind)


@functools.cache
def _said_by_class(kind: type) -> frozenset[str]:
    found: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith(_BASES):
            for value in vars(base).values():
                function = inspect.unwrap(value) if callable(value) else None
                if isinstance(function, FunctionType):
                    found.update(_words(function.__code__))
    return frozenset(found)


def _words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words(constant)
        else:
            yield from (x for x in (constant if isinstance(constant, tuple) else (constant,)) if isinstance(x, str))
