"""CPU times and sizes of a build's objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_tools import times
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import BuildError, Options


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """A build of two sources, of which the second does not compile. Nothing is compiled yet."""
    monkeypatch.chdir(tmp_path)
    options = Options.from_environment()
    (tmp_path / "good.cpp").write_text("int answer() { return 42; }\n")
    (tmp_path / "bad.cpp").write_text("int answer() { return }\n")
    ninja = NinjaFile(options.folder)
    ninja.rule("cpp", [*options.cxx, "-c", "$in", "-o", "$out"], description="c++ $in", headers=True)
    for source in ("good.cpp", "bad.cpp"):
        ninja.build(options.folder / f"{source}.o", "cpp", [Path(source)])
    ninja.write()
    return options


def test_an_object_is_measured_beside_the_build(build: Options) -> None:
    costs = times.measure_all(times.commands(build, "good"), jobs=1)
    assert costs.keys() == {"good.cpp"}
    cost = costs["good.cpp"]
    assert cost["seconds"] > 0 and cost["bytes"] > 0 and cost["memory"] > 0
    assert not list(build.folder.glob("*.o*"))


def test_an_object_that_does_not_compile_is_an_error(build: Options) -> None:
    with pytest.raises(BuildError, match=r"bad\.cpp"):
        times.measure_all(times.commands(build, ""), jobs=2)


def test_without_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BuildError, match="make build"):
        times.commands(Options.from_environment(), "")


def test_the_table_compares_with_an_earlier_build() -> None:
    before = {
        "a.cu": times.Cost(seconds=30, bytes=3_000_000, memory=1),
        "b.cpp": times.Cost(seconds=2, bytes=0, memory=1),
    }
    now = {"a.cu": times.Cost(seconds=10, bytes=1_000_000, memory=1), "c.cu": times.Cost(seconds=1, bytes=0, memory=1)}
    assert list(times.table(now, before, rows=1)) == [
        "| object | seconds before | seconds | MB before | MB |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| all: 2 objects | 32 | 11 | 3.0 | 1.0 |",
        "| all .cu: 2 objects | 30 | 11 | 3.0 | 1.0 |",
        "| all .cpp and .cc: 0 objects | 2 |  | 0.0 |  |",
        "| a.cu | 30 | 10 | 3.0 | 1.0 |",
    ]
