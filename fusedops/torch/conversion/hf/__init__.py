"""Counterparts of modules of Hugging Face's transformers, and of others with the same code, for `convert`.

A class is recognized by its code (`forms`), not by its name. A module is skipped if it lacks an attribute that the code
reads, or if the kernels do not support one of its parts. Mixins are imported when a model needs them, and transformers
only if the program has imported it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fusedops.conversion import UnknownClass
from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf.forms import Form, all_forms
from fusedops.torch.nn.layer import FusedLayer

_NEAR = 0.8  # share of common tokens above which the report names the form and the difference
_WORDS = ("Norm", "MLP")  # the report names the nearest form in any case if both class names end with one of these
LANGUAGE_MODEL = "loss.LanguageModel"


@dataclass(frozen=True)
class Match:
    """The result of the recognition of a class: its mixin, and the names of attributes by the form's names."""

    mixin: str
    like: str
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def counterpart(kind: type, match: Match | str | None = None) -> type:
    """The counterpart of a known class. `match` is the result of `look_up`, if there is one already.

    Raises:
        UnknownClass: the class has no counterpart.
    """
    key, made = _made.get(kind, ((None, None), None))
    forward = vars(kind).get("forward")
    match = match or (key[0] if key[1] is forward else None) or look_up(kind)
    if not isinstance(match, Match):
        raise UnknownClass(match or "it is not known")
    if made is None or key != (match, forward):
        file, _, name = match.mixin.partition(".")
        mixin = getattr(importlib.import_module(f"{__name__}.{file}"), name)
        made = mixin.over(kind, match.like, match.names, match.options)
        _made[kind] = (match, forward), made
    return made


def without_logits(kind: type) -> type | None:
    """The counterpart of a language model's class that returns no logits in training; None if there is none."""
    from fusedops.torch.conversion.hf import fused_loss

    try:
        return fused_loss.counterpart(kind)
    except (UnknownClass, source.NoSource):
        return None


def notes_on_losses(modules: Iterable[Any], fuse_loss: bool) -> list[str]:
    """The report's notes on the logits of the language models among these modules, one per class."""
    if "transformers" not in sys.modules:
        return []
    try:
        from fusedops.torch.conversion.hf import fused_loss, loss
    except ImportError:  # as `all_forms` says
        return []
    models = [module for module in modules if isinstance(module, loss.LanguageModel)]
    return list(dict.fromkeys(filter(None, (fused_loss.note(model, fuse_loss) for model in models))))


# One counterpart per class, made again if the class gets another `forward`.
_made: dict[type, tuple[tuple[Match, Any], type]] = {}


def is_known(kind: type) -> bool:
    return kind in _made or isinstance(look_up(kind), Match)


def look_up(kind: type) -> Match | str | None:
    """The match of a class; or the reason to skip it, if the report should name one; otherwise None."""
    if str(kind.__module__).partition(".")[0] in ("torch", "fusedops") or not issubclass(kind, torch.nn.Module):
        return None
    if "forward" not in vars(kind) or issubclass(kind, FusedLayer):
        return None
    from fusedops.torch.conversion.hf.rotary import unknown_rotation

    reason = None
    try:
        found = _whole(kind)
        if isinstance(found, Match):
            return found
        reason = found
    except source.NoSource as error:
        reason = str(error)
    return _step(kind) or reason or unknown_rotation(kind)


def _whole(kind: type) -> Match | str | None:
    """The match of a class with a method that equals a form; or the difference from the nearest form."""
    near = None
    for method, forms in _forms("transformers" in sys.modules).items():
        if not hasattr(kind, method):
            continue
        try:
            code = source.of_method(kind, method, None if kind.__name__.endswith(_WORDS) else _longest())
        except source.TooLong:
            continue
        form = forms.get(code)
        if form is None:
            near = near or _near(kind, code, forms)
            continue
        roles = source.of_method(form, method).attributes
        options = {**form.options, "methods": code.methods}
        if code.forwarded:
            options["forwarded"] = code.forwarded[0]
        return Match(form.mixin, form.__name__, dict(zip(roles, code.attributes, strict=True)), options)
    return near


@functools.cache
def _forms(with_transformers: bool) -> dict[str, dict[source.Code, type[Form]]]:
    """All forms, by the name of the method and its code."""
    found: dict[str, dict[source.Code, type[Form]]] = {}
    for form in all_forms(with_transformers):
        found.setdefault(form.method, {})[source.of_method(form, form.method)] = form
    return found


@functools.cache
def _longest() -> int:
    """The limit of tokens: a longer function cannot come near any form."""
    longest = max(len(code.tokens) for forms in _forms(False).values() for code in forms)
    return int(longest / _NEAR)


def _near(kind: type, code: source.Code, forms: Mapping[source.Code, type[Form]]) -> str | None:
    """The nearest form and the first difference from it, if the code is near a form."""
    best, most = None, 0.0
    for known, form in forms.items():
        share = source.shared(code, known)
        is_meant = any(kind.__name__.endswith(word) and form.__name__.endswith(word) for word in _WORDS)
        if form.is_named_if_near and share > most and (is_meant or share >= _NEAR):
            best, most = (known, form), share
    return f"differs from {best[1].__name__} {source.difference(code, best[0])}" if best else None


def _step(kind: type) -> Match | None:
    """The match of a class whose counterpart replaces a single function that `forward` calls."""
    from fusedops.torch.conversion.hf.rotary import rotations

    likes = {rotation.like: None for _, rotation in rotations(kind)}
    like = f"{' and '.join(likes)}'s rotary embedding" if likes else ""
    if "transformers" in sys.modules:
        try:
            from fusedops.torch.conversion.hf import deferred

            if deferred.computes_scores(kind):
                return Match("deferred.DeferredAttention", like)
        except ImportError:  # as `all_forms` says
            pass
    if likes:
        return Match("rotary.RotaryAttention", like)
    if "transformers" not in sys.modules:
        return None
    try:
        from fusedops.torch.conversion.hf import loss, positions
    except ImportError:
        return None
    if loss.is_language_model(kind):
        return Match(LANGUAGE_MODEL, "")
    if positions.makes_own(kind):
        return Match("positions.OwnPositions", "")
    return Match("loss.HeadWithLoss", "") if loss.unknown_head(kind) is None else None
