"""Figures in documents: each block between marks is written from result files.

A block begins with `<!-- figures: NAME -->` and ends with `<!-- end of figures -->`. `BLOCKS[NAME]` returns its text.
The result files are docs/benchmarks/*.json, docs/families/ and the printed output in docs/keras.md.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from audits.families import page as families_page
from audits.families import steps_table
from benchmarks.cases.case import BOTH, DISTRIBUTED, GROWTH, SECTIONS
from benchmarks.operators import OPERATORS
from benchmarks.page.pictures import PICTURES, picture_name, speed
from benchmarks.page.summary import OURS, compared, rows_of, slower, time_of
from benchmarks.page.tables import SEEDS, label, table, where
from benchmarks.page.text import Machines, environment, facts, heading, load
from benchmarks.results.figures import NOT_SLOWER, TITLES, fastest_baseline, floor_of, seconds, times_of
from benchmarks.results.report import memory_text, time_text
from benchmarks.results.schema import Row, Run

ROOT = Path(__file__).parents[2]
FOLDER = Path("docs/benchmarks")  # runs and charts
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.S)
MAX_GAPS = 12
MODELS = {  # model types of transformers and their names
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen3": "Qwen3",
    "gemma2": "Gemma 2",
    "phi3": "Phi-3",
    "mixtral": "Mixtral",
    "gpt2": "GPT-2",
    "modernbert": "ModernBERT",
    "bert": "BERT",
    "vit": "ViT",
}
DRAWN = (
    "rms_norm",
    "layer_norm",
    "add_rms_norm",
    "softmax",
    "cross_entropy",
    "bias_act",
    "swiglu",
    "linear",
    "gated_linear",
    "attention_causal",
)
SPEED = (OURS, "compiled", "Liger")
BASELINES = ("eager", "compiled", "Liger", "QuACK")


@dataclass(frozen=True)
class Results:
    """The result files of a checkout."""

    root: Path

    @cached_property
    def machines(self) -> Machines:
        return load(self.root / FOLDER)


def documents(root: Path) -> list[Path]:
    """The documents that may hold marks."""
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]


def renewed(path: Path, results: Results) -> str:
    """The text of a document with all blocks written anew."""

    def block(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        text = BLOCKS[name](results).replace("](benchmarks/", f"]({_relative(path)}benchmarks/")
        return f"{begin}{text}\n{end}"

    return MARKED.sub(block, path.read_text())


def _relative(path: Path) -> str:
    """The path of docs/ as seen from a document."""
    return "" if path.parent.name == "docs" else "docs/"


def operators(results: Results) -> str:
    """One entry for each operator over rows, and for the largest layers and attention: PyTorch in bfloat16."""
    chosen = list(_chosen(results))
    names = [name for name in BASELINES if any(time_of(row, name) for row in chosen)]
    lines = [
        [
            f"`{row['operator']}`",
            "×".join(map(str, row["shape"])),
            time_text(time_of(row, OURS) or 0.0),
            _ratio(times_of(row, "copy")) if floor_of(row) else "",
            *(_ratio(_times_as_fast(row, name)) for name in names),
        ]
        for row in chosen
    ]
    heads = ["operator", "shape", "time", "time / floor", *(f"speedup over {name}" for name in names)]
    return f"{_gpu(results)}, PyTorch, bfloat16, forward and backward:\n\n{table(heads, lines)}"


def _chosen(results: Results) -> Iterator[Row]:
    """The first shape of each operator, forward and backward if that was measured."""
    found: dict[str, Row] = {}
    for run in _of_gpu(results, "torch"):
        for row in rows_of(run, "rows", "linear", "attention"):
            if row["variant"] == BOTH and time_of(row, OURS):
                found.setdefault(row["operator"], row)
    yield from sorted(found.values(), key=lambda row: list(OPERATORS).index(row["operator"]))


def draw_speed(results: Results) -> None:
    """The chart of the README."""
    measured = _steps()
    operators = {
        row["operator"]: {name: ratio for name in SPEED if (ratio := _speed(row, name))}
        for row in _chosen(results)
        if row["operator"] in DRAWN
    }
    models = {
        title: {
            implementation: times[steps_table.EAGER[0]] / times[measured_as]
            for implementation, measured_as in zip(
                SPEED, (steps_table.EAGER[1], steps_table.COMPILED[0], steps_table.LIGER), strict=True
            )
            if measured_as in times
        }
        for name, title in MODELS.items()
        for times in [measured["families"][name]]
    }
    panels = {"Operators, forward + backward": operators, "Training steps of converted models": models}
    speed.draw(panels, results.root / FOLDER / speed.NAME, [*results.machines.values(), measured])


def _speed(row: Row, name: str) -> float | None:
    """The speed of an implementation relative to PyTorch's eager mode."""
    return times_of(row, name, "eager")


def sections(results: Results) -> str:
    """Each section of the runs on a GPU: its entries beside the floor and the fastest correct baseline."""
    lines = []
    for framework in TITLES:
        for section, about in SECTIONS.items():
            rows = [row for run in _of_gpu(results, framework) for row in rows_of(run, section)]
            floors = [x for row in rows if (x := times_of(row, "copy"))]
            ratios = [x for row in rows if (baseline := fastest_baseline(row)) and (x := times_of(row, baseline))]
            if section not in (*GROWTH, *SEEDS) and (floors or ratios):
                counts = f"{sum(x <= NOT_SLOWER for x in ratios)} of {len(ratios)}" if ratios else ""
                lines.append(
                    [
                        f"{TITLES[framework]}: {about.title}",
                        str(len(rows)),
                        *_middle_and_most(floors),
                        *_middle_and_most(ratios),
                        counts,
                    ]
                )
    heads = ["section", "entries", "time / floor", "worst", "time / fastest", "worst", "within 2 %"]
    return f"{_gpu(results)}:\n\n{table(heads, lines)}"


def _middle_and_most(ratios: Sequence[float]) -> list[str]:
    return [_ratio(statistics.median(ratios)), _ratio(max(ratios))] if ratios else ["", ""]


def gaps(results: Results) -> str:
    """The entries on a GPU in which a baseline is furthest ahead of what a user calls, each by its newest run."""
    runs = [run for framework in TITLES for run in _of_gpu(results, framework)]
    newest: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: run["environment"]["date"]):
        newest |= {(run["framework"], row["key"]): run for row in run["results"]}
    found = [
        (times, run, row, baseline)
        for run in runs
        for times, row, ours, baseline in slower(run)
        if ours == OURS and newest[run["framework"], row["key"]] is run
    ]
    found.sort(key=lambda x: -x[0])
    lines = [
        [f"{TITLES[run['framework']]}: {label(row)}", where(row), baseline, f"{times:.2f}"]
        for times, run, row, baseline in found[:MAX_GAPS]
    ]
    rest = f"\n\n{len(found) - MAX_GAPS} smaller gaps are on the pages of the machines." * (len(found) > MAX_GAPS)
    return table(["operator", "dtype, shape", "faster", "ours / theirs"], lines) + rest


def models(results: Results) -> str:
    """Training steps of Hugging Face's models before and after `convert`."""
    measured = _steps()
    lines = []
    for name, title in MODELS.items():
        times = measured["families"][name]
        before, after = (times[each] for each in steps_table.EAGER)
        compiled = [times[each] for each in steps_table.COMPILED]
        liger = times.get(steps_table.LIGER)
        ratios = [before / after, compiled[0] / compiled[1], liger / after if liger else None]
        lines.append([title, *(f"{1e3 * x:.1f} ms" for x in (before, after)), *map(_ratio, ratios)])
    heads = ["model", "before", "converted", "speedup", "compiled: speedup", "speedup over Liger"]
    return f"{measured['title']}:\n\n{table(heads, lines)}"


def models_in_short(results: Results) -> str:
    """The range of those ratios, in a sentence."""
    measured = _steps()
    before, after = steps_table.EAGER
    ratios = [times[before] / times[after] for times in measured["families"].values()]
    faster = sum(x >= NOT_SLOWER for x in ratios)
    return (
        f"{measured['title']}: of {len(ratios)} families of Hugging Face models, {faster} train faster in eager mode, "
        f"up to {max(ratios):.1f} times; the slowest runs at {min(ratios):.2f} of its speed before."
    )


def _steps() -> Mapping[str, Any]:
    """The training steps of the first machine."""
    return families_page.steps()[0]


def keras(results: Results) -> str:
    """Training steps of Keras models before and after `convert`, as docs/keras.md printed them."""
    pattern = r"^(eager|graph|XLA) +([\d.]+) -> +([\d.]+) ms, ([\d.]+) times as fast; +([\d.]+) -> +([\d.]+) GiB$"
    found = re.findall(pattern, (results.root / "docs" / "keras.md").read_text(), re.M)
    titles = [title for title in ("Transformer", "Llama") for _ in range(3)]
    lines = [
        [title, mode, f"{before} ms", f"{after} ms", times, f"{memory} → {less} GiB"]
        for title, (mode, before, after, times, memory, less) in zip(titles, found, strict=True)
    ]
    return table(["model", "mode", "before", "converted", "speedup", "peak memory"], lines)


def layers(results: Results) -> str:
    """Two layers of a Llama beside every baseline."""
    lines = []
    for run in _of_gpu(results, "torch"):
        for row in rows_of(run, "transformers"):
            for name, implementation in row["implementations"].items():
                time = seconds(implementation)
                lines.append([name, time_text(time) if time else "error", memory_text(implementation)])
    return table(["implementation", "time", "peak memory"], lines)


def several_gpus(results: Results) -> str:
    """Steps on several GPUs beside every baseline, from the runs on any GPU."""
    tables = []
    for runs in results.machines.values():
        rows = [row for run in runs for row in rows_of(run, DISTRIBUTED)]
        names = list(dict.fromkeys(name for row in rows for name in row["implementations"]))
        lines = [[row["variant"], *(_time_and_ratio(row, name) for name in names)] for row in rows]
        if rows:
            title = f"{environment(runs)['gpu']}; in parentheses, multiples of the time of fusedops:"
            tables.append(f"{title}\n\n{table(['step', *names], lines)}")
    return "\n\n".join(tables) or "The notes have the figures of single runs."


def _time_and_ratio(row: Row, name: str) -> str:
    if name not in row["implementations"]:
        return ""
    time = seconds(row["implementations"][name])
    return f"{time_text(time)} ({_ratio(times_of(row, OURS, name))})" if time else "error"


def families(results: Results) -> str:
    """The share of modules that `convert` replaces, in the newest version of each library."""
    return families_page.totals(families_page.newest(families_page.load())).rstrip()


def all_machines(results: Results) -> str:
    """The machines of docs/benchmarks.md: circumstances, charts and counts."""
    return "\n\n".join(_machine(results, name, runs) for name, runs in results.machines.items())


def _machine(results: Results, name: str, runs: Sequence[Run]) -> str:
    charts = [
        f"![{title}](benchmarks/{picture_name(name, kind)})"
        for kind, (title, _) in PICTURES.items()
        if (results.root / FOLDER / picture_name(name, kind)).exists()
    ]
    counts = [
        f"{TITLES[run['framework']]}: {_entries(len(run['results']))}, {compared(run)} with a baseline; it is faster "
        f"by more than 2 % in {len({row['key'] for _, row, *_ in slower(run)})}."
        for run in runs
    ]
    return "\n\n".join([f"### {heading(name, runs)}", "\n".join([facts(runs), *counts]), *charts])


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def missing(results: Results) -> str:
    """The sections that `make bench` measures and no run has."""
    found = {row["section"] for runs in results.machines.values() for run in runs for row in run["results"]}
    titles = [about.title.partition(":")[0] for section, about in SECTIONS.items() if section not in found]
    return "\n".join(f"- {title}" for title in titles) or "None."


def _gpu(results: Results) -> str:
    """The GPU of the largest run, which the tables are about."""
    gpu: str = environment(next(iter(results.machines.values())))["gpu"]
    return gpu


def _of_gpu(results: Results, framework: str) -> list[Run]:
    return [
        run
        for runs in results.machines.values()
        for run in runs
        if run["framework"] == framework and environment(runs).get("gpu") == _gpu(results)
    ]


def _times_as_fast(row: Row, name: str) -> float | None:
    times = times_of(row, name)
    return 1 / times if times else None


def _ratio(times: float | None) -> str:
    return f"{times:.2f}" if times else ""


BLOCKS: dict[str, Callable[[Results], str]] = {
    "operators": operators,
    "sections": sections,
    "gaps": gaps,
    "models": models,
    "models-in-short": models_in_short,
    "keras": keras,
    "layers": layers,
    "several-gpus": several_gpus,
    "families": families,
    "machines": all_machines,
    "missing": missing,
}
