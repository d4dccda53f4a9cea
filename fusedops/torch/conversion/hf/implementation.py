"""Changes the name of the attention in the configs of transformers' models.

A model may have several configs, each for some of its modules, and models may share a config. The name is not saved to
files, and the original name follows from ours.
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

from fusedops.functions.common import MAX_FEATURES
from fusedops.torch.conversion.hf.code import steps

REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_BASES = ("torch", "fusedops", "transformers.modeling_utils", "transformers.generation")  # modules without attentions


@dataclass
class Owner:
    """A config and the modules that refer to it."""

    config: Any
    models: list[Any] = field(default_factory=list)
    attentions: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    @property
    def implementation(self) -> str | None:
        return getattr(self.config, "_attn_implementation", None)


@dataclass(frozen=True)
class Change:
    """The report entry for the attention of a config: converted, or skipped for a reason."""

    attentions: tuple[Any, ...]
    before: str
    reason: str = ""
    is_found: bool = False  # True if it was converted before

    def __str__(self) -> str:
        counts = Counter(getattr(type(each), "original", type(each)).__name__ for each in self.attentions)
        which = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        if self.reason:
            return f"kept the attention of {which}, {self.before}: {self.reason}"
        became = " is fusedops.torch's already" if self.is_found else f": {self.before} -> fusedops.torch.attention"
        return f"the attention of {which}{became}"


def convert(modules: Sequence[torch.nn.Module]) -> list[Change]:
    """Selects our attention in the configs of these modules, where it computes the same."""
    owners = _owners(modules)
    ours = names()
    reasons = {id(owner.config): why_not(owner) for owner in owners}
    full = {id(owner.config) for owner in owners if needs_full_masks(owner)}
    found = []
    for owner in owners:
        before = str(owner.implementation)
        within = [each for model in owner.models for each in _attentions(model.modules())] or owner.attentions
        # A config without attentions may make the masks for those of submodules.
        reason_within = next((reason for each in within if (reason := reasons[id(each.config)])), None)
        reason = reasons[id(owner.config)] or (None if owner.attentions else reason_within)
        if reason is None and within and before not in ours:
            has_full_masks = not full.isdisjoint(id(each.config) for each in (owner, *within))
            select([(owner.config, next(new for new, old in ours.items() if old == (before, has_full_masks)))])
        if owner.attentions:
            change = Change(tuple(owner.attentions), before, reason or "")
            found.append(replace(change, is_found=before in ours))
    return found


def revert(modules: Iterable[torch.nn.Module]) -> None:
    """Restores the original name in every config."""
    ours = names()
    select([(config, ours[name].original) for config, name in selected(modules) if name is not None and name in ours])


def is_ours(module: torch.nn.Module) -> bool:
    """True if a module is an attention whose config selects ours."""
    return any(owner.attentions and owner.implementation in names() for owner in _owners([module]))


def reasons(modules: Iterable[torch.nn.Module]) -> dict[Any, str | None]:
    """The reason to skip, or None, for each attention that is selected by its config."""
    found = ((owner.attentions, why_not(owner)) for owner in _owners(modules))
    return {each: reason for attentions, reason in found for each in attentions}


Selected = list[tuple[Any, str | None]]  # configs and their names


def selected(modules: Iterable[torch.nn.Module]) -> Selected:
    return [(owner.config, owner.implementation) for owner in _owners(modules)]


def select(names: Selected) -> None:
    for config, name in names:
        config._attn_implementation_internal = name


def why_not(owner: Owner) -> str | None:
    """The reason to skip the attentions of a config, or None."""
    try:
        from fusedops.torch.conversion.hf import attention
    except ImportError as error:
        return f"this version of transformers is not known: {error}"
    name = owner.implementation
    if name in attention.NAMES:
        return None
    if name not in {each.original for each in attention.NAMES.values()}:
        return f"it is {name}, which was chosen by user code"
    if getattr(owner.config, "output_attentions", False):
        return "its config asks for the weights of the attention"
    if name == "eager" and not owner.models:
        return "no model makes masks by its config"
    for model in owner.models:
        if not model._can_set_attn_implementation():
            return f"{type(model).__name__} has code of its own for it"
    for module in (*owner.models, *owner.others, *owner.attentions):
        kind: type = type(module)
        if _compares_name(kind):
            return f"the code of {type(module).__name__} asks for its name"
    return next((reason for module in owner.attentions if (reason := _unfused(module, name))), None)


def needs_full_masks(owner: Owner) -> bool:
    """True if the code of a config's modules may read masks, or expects all of causality or windows in them."""
    if not all(model._supports_flash_attn for model in owner.models):
        return True
    has_sdpa = all(model._supports_sdpa for model in owner.models)  # sdpa uses `is_causal`, too
    for module in owner.attentions:
        if not has_sdpa and getattr(module, "is_decoder", False) and not getattr(module, "is_causal", True):
            return True
        if _has_window(module.config) and "sliding_window" not in _words_of(module):
            return True
    return False


def _unfused(module: Any, name: str) -> str | None:
    from fusedops.torch.conversion.hf import attention
    from fusedops.torch.conversion.hf.internals import sdpa_attention_forward

    words = _words_of(module)
    if "sinks" in words and "s_aux" not in words:
        return "it has sinks, which it does not pass to transformers' attention functions"
    features = getattr(module, "head_dim", None)
    if isinstance(features, int) and features > MAX_FEATURES:
        return f"its heads have {features} features; the kernel takes up to {MAX_FEATURES}"
    own = attention.eager(module) if name == "eager" else sdpa_attention_forward
    if own is None:
        return "its own function is not to be found"
    unknown = attention.unknown_option(own)
    return f"its own function has an argument that is not known: {unknown}" if unknown else None


def _has_window(config: Any) -> bool:
    try:
        return getattr(config, "sliding_window", None) is not None
    except Exception:  # raised by a config whose layers differ
        return True


def names() -> Mapping[str, Any]:
    """`attention.NAMES`, which are then registered; empty without a known version of transformers."""
    if "transformers" not in sys.modules:
        return {}
    try:
        from fusedops.torch.conversion.hf import attention
    except ImportError:
        return {}
    return attention.NAMES


def _owners(modules: Iterable[torch.nn.Module]) -> list[Owner]:
    """All configs of these modules; none without transformers, or with another package of that name."""
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
        elif REGISTRY in _words_of(module):
            owner.attentions.append(module)
        else:
            owner.others.append(module)
    return list(found.values())


def _attentions(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    for module in modules:
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal") and REGISTRY in _words_of(module):
            yield module


def _words_of(module: Any) -> frozenset[str]:
    """The names and strings in the code of a module's class."""
    kind: type = type(module)
    return words_of_class(kind)


@functools.cache
def words_of_class(kind: type) -> frozenset[str]:
    found: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith(_BASES):
            for value in vars(base).values():
                function = inspect.unwrap(value) if callable(value) else None
                if isinstance(function, FunctionType):
                    found.update(words(function.__code__))
    return frozenset(found)


@functools.cache
def _compares_name(kind: type) -> bool:
    """True if the code of a class has the name sdpa, except as a key of the registry."""
    for base in kind.__mro__:
        for value in vars(base).values() if not base.__module__.startswith(_BASES) else ():
            function = inspect.unwrap(value) if callable(value) else None
            before = None
            for step in steps(function.__code__) if isinstance(function, FunctionType) else ():
                words = step.argval if isinstance(step.argval, tuple) else (step.argval,)
                if "sdpa" in words and before != REGISTRY:
                    return True
                before = step.argval
    return False


def words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from words(constant)
        else:
            yield from (x for x in (constant if isinstance(constant, tuple) else (constant,)) if isinstance(x, str))
