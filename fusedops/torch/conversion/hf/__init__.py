"""The counterparts of the modules of Hugging Face's transformers and of others with the same code, for `convert`.

A class is known by what its code computes (`forms`): the name counts for nothing. A module that lacks an attribute
which the code reads, or whose parts the kernels do not have, is kept as it is. Mixins are imported when a model has a
module for them, and nothing of transformers is imported where it is not there.
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

_NEAR = 0.8  # how much of the tokens two functions share that are meant to be the same
_NEAR_BY_NAME = 0.5  # the same of two classes whose names end with one of these
_WORDS = ("RMSNorm", "LayerNorm", "MLP")


LANGUAGE_MODEL = "loss.LanguageModel"


@dataclass(frozen=True)
class Match:
    """What a class is known from."""

    mixin: str
    like: str
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def counterpart(kind: type, match: Match | str | None = None) -> type:
    """What stands in for this class, which is known; it may raise what `conversion.Rules.counterpart` does.

    `match` is what `look_up` has found, if it was asked already.
    """
    of, made = _made.get(kind, ((None, None), None))
    forward = vars(kind).get("forward")
    match = match or (of[0] if of[1] is forward else None) or look_up(kind)
    if not isinstance(match, Match):
        raise UnknownClass(match or "it is not known")
    if made is None or of != (match, forward):
        file, _, name = match.mixin.partition(".")
        mixin = getattr(importlib.import_module(f"{__name__}.{file}"), name)
        made = mixin.over(kind, match.like, match.names, match.options)
        _made[kind] = (match, forward), made
    return made


def without_logits(kind: type) -> type | None:
    """What stands in for the class of a language model that is to return no logits in training; None: it must."""
    from fusedops.torch.conversion.hf import fused_loss

    try:
        return fused_loss.counterpart(kind)
    except (UnknownClass, source.NoSource):
        return None


def notes_on_losses(modules: Iterable[Any], fuse_loss: bool) -> list[str]:
    """What a report says of the logits of the language models among these, each class once."""
    if "transformers" not in sys.modules:
        return []
    try:
        from fusedops.torch.conversion.hf import fused_loss, loss
    except ImportError:  # as `all_forms` says
        return []
    models = [module for module in modules if isinstance(module, loss.LanguageModel)]
    return list(dict.fromkeys(filter(None, (fused_loss.note(model, fuse_loss) for model in models))))


# One of each class, as long as its code is the same: somebody may exchange its forward.
_made: dict[type, tuple[tuple[Match, Any], type]] = {}


def is_known(kind: type) -> bool:
    return kind in _made or isinstance(look_up(kind), Match)


def look_up(kind: type) -> Match | str | None:
    """What the class is known from; or why it is not, where there is something to say; else None."""
    if str(kind.__module__).partition(".")[0] in ("torch", "fusedops") or not issubclass(kind, torch.nn.Module):
        return None
    if "forward" not in vars(kind) or issubclass(kind, FusedLayer):
        return None
    reason = None
    try:
        found = _whole(kind)
        if isinstance(found, Match):
            return found
        reason = found
    except source.NoSource as error:
        reason = str(error)
    return _step(kind) or reason or _unknown_step(kind)


def _whole(kind: type) -> Match | str | None:
    """Of a class with a method that is computed as a whole; or which form its `forward` nearly has."""
    near = None
    for method, forms in _forms("transformers" in sys.modules).items():
        if not hasattr(kind, method):
            continue
        try:
            code = source.of_method(kind, method, _longest())
        except source.TooLong:
            continue
        form = forms.get(code)
        if form is None:
            near = near or _near(kind, code, forms)
            continue
        roles = source.of_method(form, method).attributes
        options = {**form.options, "methods": code.methods}
        if code.handed_on:
            options["forwarded"] = code.handed_on[0]
        return Match(form.mixin, form.__name__, dict(zip(roles, code.attributes, strict=True)), options)
    return near


@functools.cache
def _forms(with_transformers: bool) -> dict[str, dict[source.Code, type[Form]]]:
    """By the name of the method and its code."""
    found: dict[str, dict[source.Code, type[Form]]] = {}
    for form in all_forms(with_transformers):
        found.setdefault(form.method, {})[source.of_method(form, form.method)] = form
    return found


@functools.cache
def _longest() -> int:
    """How many tokens are worth reading: as many as a function can have that comes near a form."""
    longest = max(len(code.tokens) for forms in _forms(False).values() for code in forms)
    return int(longest / _NEAR)


def _near(kind: type, code: source.Code, forms: Mapping[source.Code, type[Form]]) -> str | None:
    """Which form the code differs from in one place."""
    best, most = None, 0.0
    for known, form in forms.items():
        share = source.shared(code, known)
        is_meant = any(kind.__name__.endswith(word) and form.__name__.endswith(word) for word in _WORDS)
        if form.is_named_if_near and share > most and share >= (_NEAR_BY_NAME if is_meant else _NEAR):
            best, most = (known, form), share
    return f"differs from {best[1].__name__} {source.difference(code, best[0])}" if best else None


def _unknown_step(kind: type) -> str | None:
    from fusedops.torch.conversion.hf.rotary import unknown_rotation

    return unknown_rotation(kind)


def _step(kind: type) -> Match | None:
    """Of a class whose code stays as it is but for one step."""
    from fusedops.torch.conversion.hf.rotary import rotations

    likes = {rotation.like: None for _, rotation in rotations(kind)}
    if likes:
        return Match("rotary.RotaryAttention", f"{' and '.join(likes)}'s rotary embedding")
    if "transformers" not in sys.modules:
        return None
    try:
        from fusedops.torch.conversion.hf import loss, positions
    except ImportError:  # as `all_forms` says
        return None
    if loss.is_language_model(kind):
        return Match(LANGUAGE_MODEL, "")
    if positions.makes_own(kind):
        return Match("positions.OwnPositions", "")
    return Match("loss.HeadWithLoss", "") if loss.unknown_head(kind) is None else None
