"""How many modules of each kind a model has, how many of them `convert` replaces, and why not the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from fusedops.conversion import Outcome

NORMS = "norms"
ACTIVATIONS = "activations"
GATED = "gated MLPs"
ROTARY = "rotary embeddings"
PAIRS = "sum + norm"
EXPERTS = "experts"
LOSSES = "losses"
ATTENTIONS = "attentions"
KINDS = (NORMS, ACTIVATIONS, GATED, ROTARY, PAIRS, EXPERTS, LOSSES, ATTENTIONS)


class Row(TypedDict, total=False):
    """Of one family."""

    model: str
    counts: dict[str, list[int]]  # kind: how many there are, how many are converted
    kept: dict[str, dict[str, int]]  # kind: class and reason of those that are not: how many
    problem: str  # why there is no model


NO_COUNTERPART = "no counterpart"
NOT_THIS_PART = "converted, but for this part of its code"
NOT_CALLED = "not counted: the model does not call it with the inputs that were found"


def counted(
    kinds: Mapping[Any, Counter[str]],
    outcomes: list[Outcome],
    classes: Mapping[Any, str],
    attending: Mapping[Any, str | None],
    does: Callable[[Any, str], bool] = lambda module, kind: True,
) -> Row:
    """A row.

    Args:
        kinds: of each module, before the conversion.
        outcomes: those of the report.
        classes: names of the modules' classes.
        attending: of the attentions that the model has called, why fusedops's was not; None if it was.
        does: whether a module that was converted does its work of a kind with a kernel.
    """
    became = {outcome.thing: outcome for outcome in outcomes}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    kept: dict[str, Counter[str]] = defaultdict(Counter)
    for module, found in kinds.items():
        outcome = became.get(module)
        for kind, count in found.items():
            if kind == ATTENTIONS:
                reason = attending.get(module, NOT_CALLED)
                counts[kind][0] += count * (reason != NOT_CALLED)
                counts[kind][1] += count * (reason is None)
                if reason is not None:
                    kept[kind][f"{classes[module]}: {reason}"] += count
                continue
            counts[kind][0] += count
            is_converted = outcome is not None and outcome.status in ("replaced", "found", "computed")
            if is_converted and does(module, kind):
                counts[kind][1] += count
            else:
                reason = NOT_THIS_PART if is_converted else (outcome and outcome.reason) or NO_COUNTERPART
                kept[kind][f"{classes[module]}: {reason}"] += count
    return {"counts": dict(counts), "kept": {kind: dict(reasons) for kind, reasons in kept.items()}}
