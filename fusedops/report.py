"""What `convert` prints, in both frameworks."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any


def subclass_of(base: str) -> str:
    """Why a thing is kept whose class is derived from a known one."""
    return f"a subclass of {base}, which may compute something else"


class Report:
    """Of layers, or modules, and losses. Those made of others are not spoken of unless they were replaced.

    A condition is a sentence that says when the kernel computes the layer, where that is not known yet: such a layer is
    not counted among those replaced.
    """

    noun = "layers"

    def __init__(self, name: str) -> None:
        self.name = name
        self.all = self.replaced_ones = self.found_ones = 0
        self.replaced: Counter[tuple[str, str, str]] = Counter()  # class, counterpart, condition
        self.kept: dict[tuple[str, str], list[str]] = defaultdict(list)  # class and reason: names
        self.ignored: Counter[str] = Counter()
        self.notes: list[str] = []

    def is_counted(self, thing: Any) -> bool:
        return True

    def is_container(self, thing: Any) -> bool:
        raise NotImplementedError

    def name_of(self, thing: Any) -> str:
        return str(thing.name)

    def replace(self, thing: Any, kind: type, counterpart: type, condition: str = "") -> None:
        """A thing of this class has become one of the counterpart."""
        self.replaced[kind.__name__, f"{counterpart.__module__}.{counterpart.__qualname__}", condition] += 1
        self.replaced_ones += self._count(thing) and not condition

    def find(self, thing: Any, condition: str = "") -> None:
        """What is fusedops's already."""
        self.found_ones += self._count(thing) and not condition

    def keep(self, thing: Any, reason: str) -> None:
        self.kept[type(thing).__name__, reason].append(self.name_of(thing))
        self._count(thing)

    def ignore(self, thing: Any) -> None:
        if not self.is_container(thing) and self._count(thing):
            self.ignored[type(thing).__name__] += 1

    def _count(self, thing: Any) -> bool:
        counted = self.is_counted(thing)
        self.all += counted
        return counted

    def __str__(self) -> str:
        lines = [f"fusedops: {self.replaced_ones} of {self.all} {self.noun} of {self.name!r} replaced"]
        if self.found_ones:
            lines[0] += f", {self.found_ones} are fusedops's already"
        width = max((len(kind) for kind, *_ in self.replaced), default=0)
        for (kind, counterpart, condition), count in sorted(self.replaced.items()):
            line = f"  {count:4} {kind:{width}} -> {counterpart}"
            lines.append(f"{line}, {condition}" if condition else line)
        for (kind, reason), names in sorted(self.kept.items()):
            which = repr(names[0]) if len(names) == 1 else f"({len(names)})"
            lines.append(f"  kept {kind} {which}: {reason}")
        if self.ignored:
            counts = ", ".join(f"{name} ({count})" for name, count in sorted(self.ignored.items()))
            lines.append(f"  no counterpart for {counts}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])
