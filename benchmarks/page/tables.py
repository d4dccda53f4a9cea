"""Markdown tables of runs: all entries, relu and axpby beside published times, and where fusedops is slower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.cases.case import SECTIONS
from benchmarks.page.summary import OURS, compared, names_of, rows_of, slower, time_of
from benchmarks.results.figures import TITLES, fastest_baseline, floor_of, is_host_bound, spread, times_of
from benchmarks.results.report import memory_text, time_text
from benchmarks.results.schema import Row, Run

SEEDS = ("seeds", "seeds-cpu")
OPEN = ("rows", "cpu-rows")  # sections whose tables are not folded
PUBLISHED = "Published times are from other machines and are not comparable."
OF_HOST = "†"
MANY = 12  # lines: more are folded


def tables(runs: Sequence[Run]) -> Iterable[str]:
    for section, about in SECTIONS.items():
        for run in runs:
            rows = rows_of(run, section)
            if rows and section not in SEEDS:
                name = f"{about.title} ({TITLES[run['framework']]})"
                yield _folded(name, _of_section(rows), section in OPEN)


def seeds(runs: Sequence[Run]) -> list[str]:
    """The section about relu and axpby on a million elements, beside published times, if they were measured."""
    found = [(run, row) for run in runs for row in rows_of(run, *SEEDS)]
    if not found:
        return []
    names = [name for name in names_of(row for _, row in found) if name != "copy"]
    published = list(dict.fromkeys(name for _, row in found for name in row.get("published", ())))
    lines = [
        [f"`{row['operator']}`, {TITLES[run['framework']]}", _time(floor_of(row))]
        + [_cell(row, name) for name in names]
        + [_time(row.get("published", {}).get(name)) for name in published]
        for run, row in found
    ]
    text = table(["", "floor", *names, *(f"published: {name}" for name in published)], lines)
    return ["## relu and axpby on 1 048 576 float32 elements", *([PUBLISHED] if published else []), text]


def losses(runs: Sequence[Run]) -> str:
    """Every entry in which a baseline is faster."""
    parts = []
    for run in runs:
        found = slower(run)
        title = TITLES[run["framework"]]
        parts.append(
            f"{title}: a baseline is faster by more than 2 % in {len({row['key'] for _, row, *_ in found})} of "
            f"{compared(run)} entries."
        )
        lines = [
            [
                label(row),
                where(row),
                ours,
                _cell(row, ours),
                baseline,
                _cell(row, baseline),
                _times(times, row, ours, baseline),
            ]
            for times, row, ours, baseline in found
        ]
        if lines:
            heads = ["", "", "fusedops", "time", "baseline", "time", "ratio"]
            parts.append(_folded(f"{title}: where a baseline is faster", table(heads, lines), len(lines) <= MANY))
    return "\n\n".join(parts)


def _of_section(rows: Sequence[Row]) -> str:
    names = [name for name in names_of(rows) if name not in (OURS, "copy")]
    columns: dict[str, list[str]] = {
        "": [label(row) for row in rows],
        "dtype, shape": [where(row) for row in rows],
        OURS: [_cell(row, OURS) for row in rows],
        "spread": [_spread(row) for row in rows],
        "floor": [_time(floor_of(row)) for row in rows],
        "time / floor": [_ratio(times_of(row, "copy")) for row in rows],
        "time / fastest": [_ratio(times_of(row, fastest_baseline(row) or "")) for row in rows],
        "memory": [memory_text(row["implementations"].get(OURS, {})) for row in rows],
        **{name: [_cell(row, name) for row in rows] for name in names},
    }
    kept = {head: cells for head, cells in columns.items() if any(cells)}
    return table(list(kept), list(zip(*kept.values(), strict=True)))


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)


def _folded(title: str, text: str, is_open: bool) -> str:
    return f"**{title}**\n\n{text}" if is_open else f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def label(row: Row) -> str:
    return f"`{row['operator']}` {row['variant']}"


def where(row: Row) -> str:
    parameters = f", parameters {row['parameters']}" if row.get("parameters") else ""
    return f"{row['dtype']} {'×'.join(map(str, row['shape']))}{parameters}"


def _cell(row: Row, name: str) -> str:
    """The time, or why there is none."""
    implementation: Mapping[str, Any] = row["implementations"].get(name, {})
    problem = implementation.get("problem")
    if problem:
        return "wrong" if problem.startswith("wrong") else "error"
    return _time(time_of(row, name)) + f" {OF_HOST}" * is_host_bound(row, implementation)


def _time(seconds: float | None) -> str:
    return time_text(seconds) if seconds else ""


def _ratio(times: float | None) -> str:
    return f"{times:.2f}" if times else ""


def _spread(row: Row) -> str:
    return f"{spread(row['implementations'][OURS]):.0%}" if time_of(row, OURS) else ""


def _times(times: float, row: Row, ours: str, baseline: str) -> str:
    """Whose quartiles overlap may have changed places by chance."""
    both = [row["implementations"][name] for name in (ours, baseline)]
    near = times - 1 < sum(map(spread, both))
    return f"{times:.2f}{', within the spread' if near else ''}"
