"""What `convert` prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import keras


class Report:
    """Of layers and losses; those made of other layers, and inputs, are not spoken of unless they were replaced.

    A condition is a sentence that says when the kernel computes the layer, where that is not known yet: such a layer is
    not counted among those replaced.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.layers = self.replaced_layers = self.found_layers = 0
        self.replaced: Counter[tuple[type, type, str]] = Counter()  # class, counterpart, condition
        self.kept: dict[tuple[str, str], list[str]] = defaultdict(list)  # class and reason: names
        self.ignored: Counter[str] = Counter()
        self.notes: list[str] = []

    def replace(self, thing: Any, kind: type, condition: str) -> None:
        self.replaced[kind, type(thing), condition] += 1
        self.replaced_layers += self._count(thing) and not condition

    def find(self, thing: Any, condition: str) -> None:
        """What is fusedops's already."""
        self.found_layers += self._count(thing) and not condition

    def keep(self, thing: Any, reason: str) -> None:
        self.kept[type(thing).__name__, reason].append(thing.name)
        self._count(thing)

    def ignore(self, thing: Any) -> None:
        if (
            not getattr(thing, "_layers", None)
            and not isinstance(thing, keras.layers.InputLayer)
            and self._count(thing)
        ):
            self.ignored[type(thing).__name__] += 1

    def _count(self, thing: Any) -> bool:
        is_layer = isinstance(thing, keras.layers.Layer)
        self.layers += is_layer
        return is_layer

    def __str__(self) -> str:
        lines = [f"fusedops: {self.replaced_layers} of {self.layers} layers of {self.name!r} replaced"]
        if self.found_layers:
            lines[0] += f", {self.found_layers} are fusedops's already"
        width = max((len(kind.__name__) for kind, *_ in self.replaced), default=0)
        for (kind, counterpart, condition), count in sorted(self.replaced.items(), key=_names):
            line = f"  {count:4} {kind.__name__:{width}} -> {counterpart.__module__}.{counterpart.__name__}"
            lines.append(f"{line}, {condition}" if condition else line)
        for (kind_name, reason), names in sorted(self.kept.items()):
            which = repr(names[0]) if len(names) == 1 else f"({len(names)})"
            lines.append(f"  kept {kind_name} {which}: {reason}")
        if self.ignored:
            counts = ", ".join(f"{name} ({count})" for name, count in sorted(self.ignored.items()))
            lines.append(f"  no fused kernel for {counts}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def _names(item: tuple[tuple[type, type, str], int]) -> tuple[str, str]:
    (kind, _, condition), _ = item
    return kind.__name__, condition
