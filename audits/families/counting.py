"""Counts of a model's modules by kind: all, those that `convert` replaces, and the reasons for the others."""

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


class Entry(TypedDict, total=False):
    """The counts of one family."""

    model: str
    counts: dict[str, list[int]]  # kind -> [number of modules, number converted]
    kept: dict[str, dict[str, int]]  # kind -> "class: reason" of skipped modules -> number
    problem: str  # the reason if the model could not be built


NO_COUNTERPART = "no counterpart"
NOT_THIS_PART = "converted, but for this part of its code"
NOT_CALLED = "not counted: the model does not call it with the inputs that were found"


def counted(
    kinds: Mapping[Any, Counter[str]],
    outcomes: list[Outcome],
    classes: Mapping[Any, str],
    attending: Mapping[Any, str | None],
    does: Callable[[Any, str], bool] = lambda module, kind: True,
) -> Entry:
    """The counts of one model.

    Args:
        kinds: the kinds of each module before the conversion.
        outcomes: the outcomes in the conversion's report.
        classes: the names of the modules' classes.
        attending: for each attention that the model called, the reason why fusedops's was not called, or None.
        does: a function that returns True if a converted module uses a kernel for this kind of work.
    """
    became = {outcome.thing: outcome for outcome in outcomes}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    skipped: dict[str, Counter[str]] = defaultdict(Counter)
    for module, found in kinds.items():
        outcome = became.get(module)
        for kind, count in found.items():
            if kind == ATTENTIONS:
                reason = attending.get(module, NOT_CALLED)
                counts[kind][0] += count * (reason != NOT_CALLED)
                counts[kind][1] += count * (reason is None)
                if reason is not None:
                    skipped[kind][f"{classes[module]}: {reason}"] += count
                continue
            counts[kind][0] += count
            is_converted = outcome is not None and outcome.status in ("replaced", "found", "computed")
            if is_converted and does(module, kind):
                counts[kind][1] += count
            else:
                reason = NOT_THIS_PART if is_converted else (outcome and outcome.reason) or NO_COUNTERPART
                skipped[kind][f"{classes[module]}: {reason}"] += count
    return {"counts": dict(counts), "kept": {kind: dict(reasons) for kind, reasons in skipped.items()}}
