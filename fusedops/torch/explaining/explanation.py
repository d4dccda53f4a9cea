"""The result of `explain`: a table, and a picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

_WIDTH = 40  # of the names in the table


@dataclass(frozen=True)
class Cost:
    """The cost of a step, or of a part of it."""

    seconds: float
    saved: int  # bytes that the forward keeps for the backward
    peak: int | None = None  # bytes of a GPU's memory beyond what was allocated before; None: not known


@dataclass(frozen=True)
class Row:
    """The modules of a class: what their own code takes, without the modules within them."""

    kind: str
    count: int
    replaced: int  # modules with counterparts
    theirs: Cost
    ours: Cost


@dataclass(frozen=True, repr=False)
class Explanation:
    """A training step of a model as it is, `theirs`, and converted, `ours`, by kinds of modules. It prints as a table.

    The whole step is measured separately, without the overhead of measuring its parts.
    """

    model: str
    device: str
    steps: int  # times are medians of these
    modules: int
    rows: tuple[Row, ...]  # the slowest first
    theirs: Cost
    ours: Cost
    notes: tuple[str, ...] = ()  # such as on parameters that are sharded; the table ends with them

    def __str__(self) -> str:
        replaced = sum(row.replaced for row in self.rows)
        lines = [
            f"fusedops: a training step of {self.model!r} on {self.device}, as it is and converted; medians of "
            f"{self.steps} steps",
            "",
            f"{'':{_WIDTH + 6}}{'time':>20}{'':8}{'kept for the backward':>23}",
            _line("module", "count", "theirs", "ours", "ratio", "theirs", "ours"),
            *map(_row, self.rows),
            _cells("whole step", "", self.theirs, self.ours),
        ]
        if self.theirs.peak is not None and self.ours.peak is not None:
            lines.append(f"peak memory of the step: theirs {_bytes(self.theirs.peak)}, ours {_bytes(self.ours.peak)}")
        if not replaced:
            return "\n".join(["fusedops: nothing in this model could be converted", *lines, *self.notes])
        return "\n".join([*lines, f"* {replaced} of {self.modules} modules replaced; {self._rest()}", *self.notes])

    __repr__ = __str__

    def _rest(self) -> str:
        """The unconverted classes with their shares of the converted step."""
        whole = sum(row.ours.seconds for row in self.rows) or 1.0
        shares = {row.kind: row.ours.seconds / whole for row in self.rows if not row.replaced}
        named = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share >= 0.01)
        return f"the others take {sum(shares.values()):.0%} of the converted step: {named}"

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """A picture of the table, as a figure of matplotlib.

        Args:
            path: where to save it, such as "step.png".

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            sentence = (
                "fusedops.torch.explain: a picture needs matplotlib, which is not installed: pip install matplotlib"
            )
            raise ImportError(sentence) from error
        figure = Figure(figsize=(10, 1.5 + 0.4 * len(self.rows)), layout="constrained")
        names = [f"{row.kind}{' *' if row.replaced else ''}" for row in self.rows]
        times, memory = figure.subplots(1, 2, sharey=True)
        for ax, title, what, factor in (
            (times, "time, ms", "seconds", 1e3),
            (memory, "kept for the backward, MB", "saved", 1e-6),
        ):
            for side, offset, color in (("theirs", -0.2, "#9aa0a6"), ("ours", 0.2, "#1a73e8")):
                costs = [getattr(getattr(row, side), what) * factor for row in self.rows]
                ax.barh([i + offset for i in range(len(costs))], costs, 0.4, label=side, color=color)
            ax.set_xlabel(title)
            ax.spines[["top", "right"]].set_visible(False)
        times.set_yticks(range(len(names)), names)
        times.invert_yaxis()
        times.legend(frameon=False, loc="lower right")
        ratio = self.theirs.seconds / self.ours.seconds
        figure.suptitle(f"A training step of {self.model} on {self.device}: {ratio:.2f} times as fast (* converted)")
        if path is not None:
            figure.savefig(path)
        return figure


def _row(row: Row) -> str:
    return _cells(f"{row.kind}{' *' if row.replaced else ''}", str(row.count or ""), row.theirs, row.ours)


def _cells(name: str, count: str, theirs: Cost, ours: Cost) -> str:
    ratio = f"{theirs.seconds / ours.seconds:.2f}" if ours.seconds > 0 else ""
    times = (_seconds(theirs.seconds), _seconds(ours.seconds), ratio)
    return _line(name, count, *times, _bytes(theirs.saved), _bytes(ours.saved))


def _line(name: str, count: str, *cells: str) -> str:
    widths = (10, 10, 8, 12, 11)
    name = name if len(name) <= _WIDTH else f"{name[: _WIDTH - 1]}…"
    return f"{name:{_WIDTH}}{count:>6}{''.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}"


def _seconds(seconds: float) -> str:
    return _scaled(seconds * 1e6, ("µs", "ms", "s"))


def _bytes(count: int) -> str:
    return _scaled(float(count), ("B", "kB", "MB", "GB", "TB"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """A value with three digits and its unit."""
    if not value:
        return "-"
    for unit in units[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
