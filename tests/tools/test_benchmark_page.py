"""docs/benchmarks.md: it says what the committed runs say, and hides nothing of them."""

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

from benchmarks.cases import all_cases
from benchmarks.cases.case import CALLS, PUBLISHED, Case
from benchmarks.page import __main__ as command_line
from benchmarks.page import summary, tables
from benchmarks.page import text as page
from benchmarks.page.pictures import PICTURES, style
from benchmarks.results import compare, figures, report

DOCS = ROOT / "docs"
MOST_BYTES = 200_000  # of a picture
CONTENDERS = {
    "torch": ("fusedops", "eager", "compiled", "Liger", "copy"),
    "tf": ("fusedops", "eager", "fusedops, graph", "graph", "XLA", "copy"),
}
TIMES = {"fusedops": 1.0, "copy": 0.9}  # of some unit; the others take 2


def row_of(case: Case, framework: str) -> dict[str, Any]:
    dice = random.Random(case.key)
    row = asdict(case) | {"key": case.key, "bytes": case.bytes, "flops": case.flops, "shape": list(case.shape)}
    row["contenders"] = {
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
    """Such as a benchmark writes, without what not every version of it has written."""
    machine = {"fusedops": "0.1.0", "python": "3.12.0", "cpu": "A CPU", "cores": 8, "version": "2.0"}
    machine |= {"gpu": "A GPU", "driver": "1"} if device == "cuda" else {}
    rows = [row_of(case, framework) for case in all_cases() if case.device == device and framework in case.frameworks]
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


@pytest.mark.slow
def test_the_page_is_that_of_the_committed_runs(tmp_path):
    for path in (DOCS / page.FOLDER).glob("*.json"):
        shutil.copy(path, tmp_path)
    committed = (DOCS / "benchmarks.md").read_text()
    assert page.page(tmp_path) == committed
    pictures = set(re.findall(r"!\[[^]]+\]\(benchmarks/([^)]+)\)", committed))
    assert pictures == {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {path.name for path in (DOCS / page.FOLDER).glob("*.png")}
    for path in (DOCS / page.FOLDER).glob("*.png"):
        assert path.stat().st_size <= MOST_BYTES, path.name
        with Image.open(path) as shown, Image.open(tmp_path / path.name) as drawn:
            assert shown.text[style.SHOWS] == drawn.text[style.SHOWS], f"{path.name} shows other runs"


def test_the_committed_runs_are_trimmed():
    for path in (DOCS / page.FOLDER).glob("*.json"):
        runs = json.loads(path.read_text())
        assert summary.trimmed(runs) == runs, path.name


def test_its_links_and_commands():
    text = (DOCS / "benchmarks.md").read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (DOCS / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.slow
def test_the_command(tmp_path, all_runs, monkeypatch, capsys):
    """Machines with a GPU come first; every row is on the page, and every picture is small enough."""
    arguments = []
    for device, runs in all_runs.items():
        raw = tmp_path / f"{device}_raw.json"
        raw.write_text(json.dumps(runs))
        arguments.append(f"the-{device}={raw}")
    monkeypatch.setattr(sys, "argv", ["page", *arguments, "--out", str(tmp_path / "out")])
    command_line.main()
    text = (tmp_path / "out" / "benchmarks.md").read_text()
    assert text.index("## A GPU") < text.index("## 8 cores of A CPU")
    assert text.count("- QuACK is not compared.") == 4
    for device, runs in all_runs.items():
        for run in runs:
            for row in run["results"]:
                assert f"| `{row['operator']}` {row['variant']} | {tables._where(row)} |" in text or (
                    row["section"] in tables.SEEDS
                )
        for kind in PICTURES:
            picture = tmp_path / "out" / "benchmarks" / f"the-{device}-{kind}.png"
            assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size <= MOST_BYTES
    assert text.count("published: optimized custom") == text.count(tables.PUBLISHED) == 1 and "28 µs" in text
    assert "Not drawn" not in text and "Not in these runs" not in text


def test_what_was_trimmed_has_the_same_median_and_spread(runs):
    trimmed = summary.trimmed(runs)
    for run, small in zip(runs, trimmed, strict=True):
        for row, little in zip(run["results"], small["results"], strict=True):
            for name, contender in row["contenders"].items():
                found = little["contenders"][name]
                assert len(found["samples"]) == 5
                assert figures.seconds(found) == pytest.approx(statistics.median(contender["samples"]), rel=1e-3)
                assert figures.spread(found) == pytest.approx(figures.spread(contender), abs=2e-3)
    assert summary.trimmed(trimmed) == trimmed


def test_what_was_trimmed_is_compared_and_printed_as_any_run(runs):
    trimmed = summary.trimmed(runs)
    assert compare.moves(trimmed, runs) == []
    console = Console(file=io.StringIO(), width=250)
    report.show(console, trimmed)
    assert "Rows in float32 on the CPU (TensorFlow)" in console.file.getvalue()


def test_runs_are_read_as_they_were_written(runs, tmp_path):
    trimmed = summary.trimmed(runs)
    summary.write(trimmed, tmp_path / "folder" / "runs.json")
    assert json.loads((tmp_path / "folder" / "runs.json").read_text()) == trimmed


def test_where_a_peer_is_faster(runs):
    assert "in 0 of" in tables.losses(runs[:1])
    row = row_in(runs, "cpu-rows/softmax/forward + backward/float32/4096x1024")
    eager = row["contenders"]["eager"]
    eager["samples"] = [0.5 * x for x in row["contenders"]["fusedops"]["samples"]]
    text = tables.losses(runs[:1])
    assert "in 1 of" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| `softmax`"))
    assert line.split(" | ")[2] == "fusedops" and line.split(" | ")[4] == "eager" and line.endswith(" 2.00 |")

    graph = runs[1]["results"][-1]["contenders"]
    graph["graph"]["samples"] = [0.99 * x for x in graph["fusedops, graph"]["samples"]]
    assert "fusedops, graph | " not in tables.losses(runs[1:])  # within what two measurements differ by
    for times, words in ((1.03, "1.03, within the spread |"), (1.5, "1.50 |")):
        graph["graph"]["samples"] = [x / times for x in graph["fusedops, graph"]["samples"]]
        (line,) = (x for x in tables.losses(runs[1:]).splitlines() if "| fusedops, graph | " in x)
        assert line.endswith(words)


def test_no_time_is_shown_of_what_is_wrong(runs):
    row = row_in(runs, "cpu-rows/softmax/forward + backward/float32/4096x1024")
    row["contenders"] |= {"eager": {"work": 1.0, "problem": "wrong: relative error 1"}}
    row["contenders"] |= {"Liger": {"work": 1.0, "problem": "NotImplementedError: no"}}
    (line,) = (
        line
        for table in tables.tables(runs[:1])
        if "cpu-rows" in row["section"] and "Rows in float32 on the CPU" in table
        for line in table.splitlines()
        if line.startswith("| `softmax`")
    )
    assert "| wrong |" in line and "| error |" in line


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_that_lacks_something_says_so(kind, runs, tmp_path):
    path = tmp_path / "picture.png"
    draw = PICTURES[kind][1]
    for run in runs:
        for row in run["results"]:
            row["contenders"].pop("copy", None)
        run["results"] = [row for row in run["results"] if row["section"] == "cpu"]
    problem = draw(runs, path)
    assert problem and problem.endswith(("measured", "operator", "other"))
    assert not path.exists()


def test_contenders_of_one_framework_look_different():
    for names in CONTENDERS.values():
        looks = [style.look(name) for name in names if name != "copy"]
        assert len({(look["marker"], look["color"], look["markerfacecolor"]) for look in looks}) == len(looks)
    colours = {colour for colour, _ in style.LOOKS.values()}
    assert len(colours) == len(style.LOOKS)


def test_a_busy_machine_and_a_quick_run_are_named(runs):
    assert "Other work" not in page._facts(runs) and "quick" not in page._facts(runs)
    runs[0]["environment"]["load"] = [9.0, 1.0, 1.0]
    runs[1]["quick"] = True
    assert "Other work ran on this machine** (load 9)" in page._facts(runs) and "A quick run" in page._facts(runs)
