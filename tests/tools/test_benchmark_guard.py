"""make bench-check: its comparisons, its failures, and its detection of slower kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import require
from tests.helpers.running import ROOT

pytest.importorskip("rich")


from benchmarks.guard import __main__ as command_line
from benchmarks.guard import judging, ratio
from benchmarks.implementations import side_of

COMMITTED = json.loads(judging.RATIOS.read_text())


@pytest.fixture(params=ratio.OF_CALLS)
def framework(request: pytest.FixtureRequest) -> str:
    return require(request.param, "cpu").framework


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(judging, "PAUSE", 0)


def measure(*values: float) -> Callable[[], float]:
    """Returns one value after the other."""
    left = list(values)
    return lambda: left.pop(0)


def test_an_entry_that_is_not_slower_is_measured_once(capsys):
    assert judging.problems_of({"a": measure(0.62), "b": measure(0.1)}, {"a": 0.5, "b": 0.5}) == []
    assert capsys.readouterr().out.count("committed") == 2


@pytest.mark.parametrize("values", [(0.7, 0.62), (0.7, 0.7, 0.62)])
def test_an_entry_that_is_slower_once_is_measured_again(values, capsys):
    assert judging.problems_of({"a": measure(*values), "b": measure(0.5)}, {"a": 0.5, "b": 0.5}) == []
    assert capsys.readouterr().out.count("committed") == 1 + len(values)


def test_an_entry_that_is_always_slower_is_a_problem():
    (problem,) = judging.problems_of({"a": measure(0.9, 0.8, 0.7), "b": measure(0.5)}, {"a": 0.5, "b": 0.5})
    assert problem == "slower: a: 1.40 times the committed ratio; at most 1.25 is allowed"


def test_a_ratio_without_its_entry_is_a_problem():
    """A new entry has no ratio until each machine was updated: it is not measured."""
    problems = judging.problems_of({"a": measure(0.5), "new": measure()}, {"a": 0.5, "old": 0.5})
    assert problems == [f"old has a ratio and is not measured: {judging.UPDATE}"]


@pytest.mark.parametrize("of", ratio.OF_CALLS)
def test_the_committed_ratios_belong_to_the_entries(of):
    names = [ratio.name_of(case, against) for case, against in ratio.pairs(of)]
    assert len(set(names)) == len(names)
    for ratios in COMMITTED[of].values():
        assert list(ratios) == [name for name in names if name in ratios]
        assert all(0 < value < 10 for value in ratios.values())


def rows(monkeypatch, **values: float) -> None:
    def found(framework: str) -> tuple[str, dict[str, Callable[[], float]]]:
        return f"{framework} here", {name: lambda value=value: value for name, value in values.items()}

    monkeypatch.setattr(judging, "_rows", found)


def test_update_then_check(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ratios.json"
    for framework in ("torch", "tf"):
        rows(monkeypatch, a=0.25, b=2.0)
        judging.update(framework, path)
    written = {framework: {f"{framework} here": {"a": 0.25, "b": 2.0}} for framework in ("torch", "tf")}
    assert json.loads(path.read_text()) == written
    written["tf"]["elsewhere"] = {"a": 9.0, "b": 9.0}  # another machine's ratios stay
    path.write_text(json.dumps(written))
    judging.update("tf", path)
    assert json.loads(path.read_text()) == written
    for a, code in ((0.3, 0), (0.4, 1)):
        rows(monkeypatch, a=a, b=2.0)
        with pytest.raises(SystemExit) as ended:
            judging.judge("tf", path)
        assert ended.value.code == code
        assert ("slower: a: 1.60 times" in capsys.readouterr().out) == bool(code)


def test_ratios_of_another_machine_are_ignored(tmp_path, monkeypatch, capsys):
    path = tmp_path / "ratios.json"
    path.write_text(json.dumps({"torch": {"elsewhere": {"a": 0.1}}}))
    rows(monkeypatch, a=1.0)
    with pytest.raises(SystemExit) as ended:
        judging.judge("torch", path)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "slower: a: 10.00 times" in printed and printed.count("committed 0.100") == 1
    assert f"not judged: the ratios are those of elsewhere. Of this machine: {judging.UPDATE}" in printed


def test_without_frameworks_nothing_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["guard"])
    monkeypatch.setattr(command_line, "fault", lambda framework: f"{framework.name} is not built")
    monkeypatch.setattr(ratio, "use_one_thread", lambda: None)
    assert command_line.main() == 1
    assert capsys.readouterr().out == "torch is not built\ntf is not built\nfusedops: nothing was measured\n"


@pytest.mark.slow
def test_the_command_fails(tmp_path, framework):
    """One entry has a ratio, which every result exceeds; the others have none."""
    name = "relu forward / eager"
    path = tmp_path / "ratios.json"
    here, _ = judging._rows(framework)
    path.write_text(json.dumps({framework: {here: {name: 1e-9}}}))
    command = [sys.executable, "-m", "benchmarks.guard", "--framework", framework, "--ratios", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stderr
    assert f"\n{name} " in done.stdout and f"\nslower: {name}" in done.stdout
    assert f"\nnot judged: rms_norm forward / eager has no ratio: {judging.UPDATE}\n" in done.stdout


def test_a_slower_kernel_is_detected(framework, monkeypatch):
    side = side_of(framework)
    pairs = {ratio.name_of(case, against): (case, against) for case, against in ratio.pairs(framework)}
    case, against = pairs["rms_norm forward / eager"]
    before = min(ratio.measured(side, case, against) for _ in range(3))
    public = side.public

    def twice(package: Any, case: Any) -> Callable[..., Any]:
        function = public(package, case)
        return lambda *inputs: (function(*inputs), function(*inputs))[1]

    monkeypatch.setattr(side, "public", twice)
    assert ratio.measured(side, case, against) > judging.LOSS * before
