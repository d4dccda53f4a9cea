"""Figures in documents are those of the committed result files, and the tables of a run hide no entry."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import shutil
import statistics
import sys
from dataclasses import asdict
from typing import Any

import pytest

from tests.helpers.running import ROOT

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

from PIL import Image
from rich.console import Console

from benchmarks import distributed
from benchmarks.cases import all_cases
from benchmarks.cases.case import CALLS, PUBLISHED, Case
from benchmarks.page import __main__ as command_line
from benchmarks.page import blocks, summary, tables
from benchmarks.page import text as page
from benchmarks.page.pictures import PICTURES, draw_all, picture_name, speed, style
from benchmarks.results import compare, figures, report

FOLDER = ROOT / blocks.FOLDER
FIGURE = re.compile(r"\d\s?(ms|µs|GiB|TFLOP/s|×|times as)\b")  # as a measurement is written
DOCUMENTS = [str(path.relative_to(ROOT)) for path in blocks.documents(ROOT)]
# The notes date each experiment, testing.md its soak; make families writes families.md.
WITH_FIGURES = ("docs/notes/", "docs/testing.md", "docs/families.md")
MAX_BYTES = 200_000  # of a picture
CONTENDERS = {
    "torch": ("fusedops", "eager", "compiled", "Liger", "copy"),
    "tf": ("fusedops", "eager", "fusedops, graph", "graph", "XLA", "copy"),
}
TIMES = {"fusedops": 1.0, "copy": 0.9}  # in some unit; the others take 2


def row_of(case: Case, framework: str) -> dict[str, Any]:
    dice = random.Random(case.key)
    row = asdict(case) | {"key": case.key, "bytes": case.bytes, "flops": case.flops, "shape": list(case.shape)}
    row["implementations"] = {
        name: {
            "work": case.work,
            "problem": None,
            "samples": [
                TIMES.get(name.split(",")[0], 2.0) * (1e-6 + case.work * 1e-12) * dice.uniform(1, 1.1)
                for _ in range(20)
            ],
        }
        for name in CONTENDERS[framework]
        if name != "copy" or (case.unit == "B" and case.section not in CALLS)
    }
    return row | ({"published": PUBLISHED[case.key]} if case.key in PUBLISHED else {})


def run_of(framework: str, device: str) -> dict[str, Any]:
    """A run as a benchmark writes it, without the fields that older versions lack."""
    machine = {"fusedops": "0.1.0", "python": "3.12.0", "cpu": "A CPU", "cores": 8, "version": "2.0"}
    machine |= {"gpu": "A GPU", "driver": "1"} if device == "cuda" else {}
    cases = [*all_cases(), *distributed.cases(2, device)]
    rows = [row_of(case, framework) for case in cases if case.device == device and framework in case.frameworks]
    run = {"framework": framework, "environment": machine, "results": rows, "notes": ["QuACK is not compared."]}
    return json.loads(json.dumps(run))


@pytest.fixture(scope="module")
def all_runs() -> dict[str, list[dict[str, Any]]]:
    return {device: [run_of(framework, device) for framework in CONTENDERS] for device in ("cuda", "cpu")}


@pytest.fixture
def runs(all_runs) -> list[dict[str, Any]]:
    return copy.deepcopy(all_runs["cpu"])


def row_in(runs: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return next(row for row in runs[0]["results"] if row["key"] == key)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_figures_are_those_of_the_result_files(name):
    path = ROOT / name
    text = path.read_text()
    marks = re.findall(r"<!-- (?:figures: [\w-]+|end of figures) -->", text)
    assert len(marks) == 2 * len(blocks.MARKED.findall(text)), "a mark has no counterpart"
    assert blocks.renewed(path, blocks.Results(ROOT)) == text, "Run: make bench-report"


def test_every_block_is_in_a_document():
    used = {name for path in blocks.documents(ROOT) for _, name, _ in blocks.MARKED.findall(path.read_text())}
    assert used == blocks.BLOCKS.keys()


def test_a_changed_result_changes_the_documents(tmp_path):
    runs = json.loads((FOLDER / "h100.json").read_text())
    for row in runs[0]["results"]:
        ours = row["implementations"]["fusedops"]
        ours["samples"] = [2 * x for x in ours["samples"]]
    summary.write(runs, tmp_path / blocks.FOLDER / "h100.json")
    path = tmp_path / "docs/performance.md"
    shutil.copy(ROOT / "docs/performance.md", path)
    before = blocks.operators(blocks.Results(ROOT))
    assert blocks.operators(blocks.Results(tmp_path)) not in (before, "")
    assert before in path.read_text() and before not in blocks.renewed(path, blocks.Results(tmp_path))


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if not name.startswith(WITH_FIGURES)])
def test_no_figure_is_typed(name):
    text = blocks.MARKED.sub("", (ROOT / name).read_text())
    text = re.sub(r"^(```.*?^```| {4}.*?)$", "", text, flags=re.M | re.S)
    assert not [line for line in text.splitlines() if FIGURE.search(line)]


@pytest.mark.slow
def test_charts_show_the_committed_runs(tmp_path):
    """The digest in a chart is that of the runs that it is drawn from."""
    committed = {path.name for path in FOLDER.glob("*.png")}
    for path in FOLDER.glob("*.json"):
        (tmp_path / blocks.FOLDER).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / blocks.FOLDER)
    results, drawn_to = blocks.Results(tmp_path), tmp_path / blocks.FOLDER
    for name, runs in results.machines.items():
        draw_all(name, runs, drawn_to)
    blocks.draw_speed(results)
    assert {path.name for path in drawn_to.glob("*.png")} == committed
    shown = set(re.findall(r"!\[[^]]+\]\(benchmarks/([^)]+)\)", (ROOT / "docs/benchmarks.md").read_text()))
    assert shown == committed - {speed.NAME}
    for name in committed:
        assert (FOLDER / name).stat().st_size <= MAX_BYTES, name
        with Image.open(FOLDER / name) as shown_now, Image.open(drawn_to / name) as drawn:
            assert shown_now.text[style.SHOWS] == drawn.text[style.SHOWS], f"{name} shows other runs"


def test_the_committed_runs_are_trimmed():
    for path in FOLDER.glob("*.json"):
        runs = json.loads(path.read_text())
        assert summary.trimmed(runs) == runs, path.name


@pytest.mark.slow
def test_the_command(tmp_path, all_runs, monkeypatch, capsys):
    """It adds runs to a checkout, draws charts that are small enough and renews the blocks of the documents."""
    arguments = []
    for device, runs in all_runs.items():
        raw = tmp_path / f"{device}_raw.json"
        raw.write_text(json.dumps(runs))
        arguments.append(f"the-{device}={raw}")
    for name in ("README.md", "CHANGELOG.md", "docs/benchmarks.md", "docs/keras.md"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["page", *arguments, "--root", str(tmp_path)])
    command_line.main()
    text = (tmp_path / "docs/benchmarks.md").read_text()
    assert text.index("### A GPU") < text.index("### 8 cores of A CPU")
    assert text.count("QuACK is not compared.") == 4
    for device in all_runs:
        for kind in PICTURES:
            picture = tmp_path / blocks.FOLDER / picture_name(f"the-{device}", kind)
            assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size <= MAX_BYTES
            assert f"](benchmarks/{picture.name})" in text
    assert (tmp_path / blocks.FOLDER / speed.NAME).is_file()


def test_a_full_page_has_every_entry(all_runs):
    pages = {device: page.full_page(device, runs) for device, runs in all_runs.items()}
    for device, runs in all_runs.items():
        for row in (row for run in runs for row in run["results"] if row["section"] not in tables.SEEDS):
            assert f"| {tables.label(row)} | {tables.where(row)} |" in pages[device]
    text = "".join(pages.values())
    assert text.count("published: optimized custom") == text.count(tables.PUBLISHED) == 1 and "28 µs" in text


def test_a_trimmed_run_has_the_same_median_and_spread(runs):
    trimmed = summary.trimmed(runs)
    for run, small in zip(runs, trimmed, strict=True):
        for row, little in zip(run["results"], small["results"], strict=True):
            for name, implementation in row["implementations"].items():
                found = little["implementations"][name]
                assert len(found["samples"]) == 5
                assert figures.seconds(found) == pytest.approx(statistics.median(implementation["samples"]), rel=1e-3)
                assert figures.spread(found) == pytest.approx(figures.spread(implementation), abs=2e-3)
    assert summary.trimmed(trimmed) == trimmed


def test_a_trimmed_run_is_compared_and_printed_like_any_other(runs):
    trimmed = summary.trimmed(runs)
    assert compare.moves(trimmed, runs) == []
    console = Console(file=io.StringIO(), width=250)
    report.show(console, trimmed)
    assert "Rows in float32 on the CPU (TensorFlow)" in console.file.getvalue()


def test_runs_are_read_as_they_were_written(runs, tmp_path):
    trimmed = summary.trimmed(runs)
    summary.write(trimmed, tmp_path / "folder" / "runs.json")
    assert json.loads((tmp_path / "folder" / "runs.json").read_text()) == trimmed


def test_entries_with_a_faster_baseline(runs):
    assert "in 0 of" in tables.losses(runs[:1])
    row = row_in(runs, "cpu-rows/softmax/forward + backward/float32/4096x1024")
    eager = row["implementations"]["eager"]
    eager["samples"] = [0.5 * x for x in row["implementations"]["fusedops"]["samples"]]
    text = tables.losses(runs[:1])
    assert "in 1 of" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| `softmax`"))
    assert line.split(" | ")[2] == "fusedops" and line.split(" | ")[4] == "eager" and line.endswith(" 2.00 |")

    graph = runs[1]["results"][-1]["implementations"]
    graph["graph"]["samples"] = [0.99 * x for x in graph["fusedops, graph"]["samples"]]
    assert "fusedops, graph | " not in tables.losses(runs[1:])  # within the difference of two measurements
    for times, words in ((1.03, "1.03, within the spread |"), (1.5, "1.50 |")):
        graph["graph"]["samples"] = [x / times for x in graph["fusedops, graph"]["samples"]]
        (line,) = (x for x in tables.losses(runs[1:]).splitlines() if "| fusedops, graph | " in x)
        assert line.endswith(words)


def test_no_time_is_shown_for_a_wrong_result(runs):
    row = row_in(runs, "cpu-rows/softmax/forward + backward/float32/4096x1024")
    row["implementations"] |= {"eager": {"work": 1.0, "problem": "wrong: relative error 1"}}
    row["implementations"] |= {"Liger": {"work": 1.0, "problem": "NotImplementedError: no"}}
    (line,) = (
        line
        for table in tables.tables(runs[:1])
        if "cpu-rows" in row["section"] and "Rows in float32 on the CPU" in table
        for line in table.splitlines()
        if line.startswith("| `softmax`")
    )
    assert "| wrong |" in line and "| error |" in line


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_names_missing_data(kind, runs, tmp_path):
    path = tmp_path / "picture.png"
    draw = PICTURES[kind][1]
    for run in runs:
        for row in run["results"]:
            row["implementations"].pop("copy", None)
        run["results"] = [row for row in run["results"] if row["section"] == "cpu"]
    problem = draw(runs, path)
    assert problem and problem.endswith(("measured", "operator", "other"))
    assert not path.exists()


def test_baselines_of_one_framework_look_different():
    for names in CONTENDERS.values():
        looks = [style.look(name) for name in names if name != "copy"]
        assert len({(look["marker"], look["color"], look["markerfacecolor"]) for look in looks}) == len(looks)
    colours = {colour for colour, _ in style.LOOKS.values()}
    assert len(colours) == len(style.LOOKS)


def test_a_busy_machine_and_a_quick_run_are_named(runs):
    assert "Other work" not in page.facts(runs) and "quick" not in page.facts(runs)
    runs[0]["environment"]["load"] = [9.0, 1.0, 1.0]
    runs[1]["quick"] = True
    assert "Other work ran on this machine** (load 9)" in page.facts(runs) and "A quick run" in page.facts(runs)
