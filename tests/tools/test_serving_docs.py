"""The BUILD files in docs/serving.md list exactly the sources and flags of fusedops's own build."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fusedops.building.architectures import Architecture
from fusedops.building.core import CORE, Cuda, add_core
from fusedops.building.cuda import CUTLASS, Cutlass, Toolkit
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import Options
from fusedops.building.tf_library import BINDING, add_tf
from tests.helpers.running import ROOT, blocks

PAGE = (ROOT / "docs/serving.md").read_text()
Target = Mapping[str, Any]
Targets = dict[str, Target]


def targets(build_file: str, variables: dict[str, Any]) -> Targets:
    """The targets that a BUILD file declares, by name. Its language is a subset of Python."""
    found: Targets = {}

    def rule(name: str, **attributes: Any) -> None:
        found[name] = attributes

    def glob(patterns: list[str], exclude: list[str] | None = None) -> list[Path]:
        files, excluded = (
            {path.relative_to(ROOT) for pattern in given for path in ROOT.glob(pattern) if path.is_file()}
            for given in (patterns, exclude or [])
        )
        return sorted(files - excluded)

    variables |= {"cc_library": rule, "cuda_library": rule, "glob": glob, "load": lambda *names: None}
    exec(build_file, variables)
    return found


@pytest.fixture(scope="module")
def cpu_and_gpu() -> tuple[Targets, Targets]:
    """The targets of both BUILD files: the second page's replace those of the first."""
    cpu, gpu = (block for block in blocks("python", PAGE) if "cc_library(" in block)
    variables: dict[str, Any] = {}
    of_cpu = targets(cpu, variables)
    return of_cpu, {**of_cpu, **targets(gpu, variables)}


@dataclasses.dataclass(frozen=True)
class Build:
    """fusedops's own build: the sources, and the words of each ninja rule's command."""

    sources: dict[str, set[Path]]
    command: dict[str, list[str]]


@pytest.fixture
def own(monkeypatch, tmp_path) -> Build:
    for folder in (CORE, BINDING):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    for variable in ("DEBUG", "FUSEDOPS_CPU_FLAGS", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    options = dataclasses.replace(Options.from_environment(), cpu_flags="-march=x86-64-v3")
    ninja = NinjaFile(options.folder)
    toolkit = Toolkit(tmp_path, "13.0", tmp_path / "libcudart_static.a")
    cutlass = Cutlass(tmp_path, CUTLASS.partition("==")[2])
    objects = add_core(ninja, options, Cuda(toolkit, [Architecture("90", ptx=False)], cutlass))
    # The cached answer of TensorFlow, which may not be installed.
    answer = {"key": [sys.prefix, "2.21.0"], "include": str(tmp_path), "compile": [], "link": []}
    (options.folder / "tensorflow.json").write_text(json.dumps(answer))
    add_tf(ninja, options, "2.21.0", objects, toolkit)
    text = ninja.write().read_text()
    sources: dict[str, set[Path]] = {}
    for rule, source in re.findall(r"^build \S+\.o: (\w+) (\S+)$", text, re.M):
        sources.setdefault(rule, set()).add(Path(source))
    commands = re.findall(r"^rule (\w+)\n  command = (.*)$", text, re.M)
    return Build(sources, {rule: shlex.split(command) for rule, command in commands})


def is_xla(source: Path) -> bool:
    """True for sources of the library for XLA, which serving does not need."""
    return BINDING / "xla" in source.parents


def test_sources(cpu_and_gpu, own):
    cpu, gpu = cpu_and_gpu
    assert set(cpu["core"]["srcs"]) == set(gpu["core"]["srcs"]) == own.sources["core_cpp"]
    assert set(gpu["kernels"]["srcs"]) == own.sources["core_cu"]
    assert set(gpu["kernels_sm90"]["srcs"]) == own.sources["core_cu_sm90"]
    binding = {source for source in cpu["fusedops"]["srcs"] if source.suffix != ".h"}
    assert binding == {source for source in own.sources["tf_cc"] if not is_xla(source)}
    assert cpu["fusedops"]["alwayslink"]


def test_flags(cpu_and_gpu, own):
    """All flags of the own build, except those that Bazel sets itself, warnings and include folders."""
    cpu, gpu = cpu_and_gpu

    def settled(words: list[str]) -> set[str]:
        return {word for word in words if re.match("-std=|-O|-D|-m|-f(?!PIC)", word)} - {"-MMD", "-MF"}

    assert set(cpu["fusedops"]["copts"]) == settled(own.command["tf_cc"])
    assert set(gpu["core"]["copts"]) == settled(own.command["core_cpp"])
    assert set(cpu["core"]["copts"]) == settled(own.command["core_cpp"]) - {"-DFUSEDOPS_WITH_CUDA"}
    for target, rule in (("kernels", "core_cu"), ("kernels_sm90", "core_cu_sm90")):
        given = {word.replace("-nvcc_options=", "--") for word in gpu[target]["copts"]}
        ours = {word for word in own.command[rule] if re.match("-std=|-O|-D|--expt", word)}
        assert given == {word for word in ours if not word.startswith("-DFUSEDOPS_CUTLASS=")}, target
    assert "arch=compute_90a,code=sm_90a" in " ".join(own.command["core_cu_sm90"])


# Header -> the target that provides it, for headers of other projects.
ELSEWHERE = {
    "tensorflow/": "@org_tensorflow//",
    "tsl/": "@local_tsl//",
    "xla/": "@local_xla//",
    "cutlass/": ":cutlass",
    "cute/": ":cutlass",
}


def reachable(all_targets: Targets, label: str) -> set[str]:
    """The labels of a target and of all that it depends on."""
    found = {label}
    for dependency in all_targets.get(label.removeprefix(":"), {}).get("deps", []):
        found |= reachable(all_targets, dependency)
    return found


def test_every_included_header_is_in_reach(cpu_and_gpu):
    count = 0
    for all_targets in cpu_and_gpu:
        for name, target in all_targets.items():
            labels = reachable(all_targets, f":{name}")
            ours = [all_targets[label[1:]] for label in labels if label[1:] in all_targets]
            headers = {header for one in ours for header in (*one.get("hdrs", []), *one.get("srcs", []))}
            roots = [Path(root) for one in ours for root in one.get("includes", [])]
            for file in {*target.get("srcs", []), *target.get("hdrs", [])}:
                for included in re.findall(r'^#include "(.*)"', (ROOT / file).read_text(), re.M):
                    count += 1
                    elsewhere = [place for prefix, place in ELSEWHERE.items() if included.startswith(prefix)]
                    if elsewhere:
                        assert any(label.startswith(elsewhere[0]) for label in labels), f"{name}: {file}: {included}"
                    else:
                        places = (folder / included for folder in (file.parent, *roots))
                        assert headers.intersection(places), f"{name}: {file}: {included}"
    assert count > 100


def test_versions(own):
    assert f"pip install --no-deps {CUTLASS}`" in PAGE
    assert "GCC 11 or newer" in PAGE
    assert "GCC 11 or newer" in (ROOT / "README.md").read_text()
