"""What `convert` prints."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import keras


class Report:
    """Of layers and losses; those made of other layers, and inputs, are not spoken of unless they were replaced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replaced: Counter[tuple[type, type]] = Counter()
        self.replaced_before = 0
        self.kept: dict[tuple[str, str], list[str]] = defaultdict(list)  # class and reason: names
        self.kept_layers = 0
        self.ignored: Counter[str] = Counter()
        self.notes: list[str] = []

    def replace(self, kind: type, counterpart: type) -> None:
        self.replaced[kind, counterpart] += 1

    def keep(self, thing: Any, reason: str) -> None:
        self.kept[type(thing).__name__, reason].append(thing.name)
        self.kept_layers += isinstance(thing, keras.layers.Layer)

    def ignore(self, thing: Any) -> None:
        if (
            isinstance(thing, keras.layers.Layer)
            and not thing._layers
            and not isinstance(thing, keras.layers.InputLayer)
        ):
            self.ignored[type(thing).__name__] += 1

    def __str__(self) -> str:
        replaced = sum(count for (kind, _), count in self.replaced.items() if issubclass(kind, keras.layers.Layer))
        layers = replaced + self.replaced_before + self.kept_layers + self.ignored.total()
        lines = [f"fusedops: {replaced} of {layers} layers of {self.name!r} replaced"]
        if self.replaced_before:
            lines[0] += f", {self.replaced_before} before"
        width = max((len(kind.__name__) for kind, _ in self.replaced), default=0)
        for (kind, counterpart), count in sorted(self.replaced.items(), key=lambda item: item[0][0].__name__):
            lines.append(f"  {count:4} {kind.__name__:{width}} -> {counterpart.__module__}.{counterpart.__name__}")
        for (kind_name, reason), names in sorted(self.kept.items()):
            which = repr(names[0]) if len(names) == 1 else f"({len(names)})"
            lines.append(f"  kept {kind_name} {which}: {reason}")
        if self.ignored:
            counts = ", ".join(f"{name} ({count})" for name, count in sorted(self.ignored.items()))
            lines.append(f"  no fused kernel for {counts}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])
