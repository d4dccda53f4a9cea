"""The cache of compiled libraries: which sources are compiled, when, and by which process. A fake compiler logs its
calls, and takes no time."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fusedops import cache
from fusedops.building import library as building
from fusedops.building import options
from fusedops.building.core import CORE, FOR_LIBRARIES
from fusedops.building.options import BuildError
from fusedops.expressions import compiler
from tests.helpers.custom_operators import need_compiler
from tests.helpers.running import ROOT, copy_without_libraries, python

COMPILER = """#!/bin/sh
case "$*" in *--version) cat '{folder}/version'; exit;; esac
echo "$*" >> '{folder}/log'
{more}
while [ "$1" != -o ]; do shift; done
echo "what was compiled" > "$2"
"""

NVCC = """#!/bin/sh
[ "$1" = --version ] && echo release 13.0 && exit
[ "$1" = --list-gpu-arch ] && exit
echo "nvcc $*" >> '{folder}/log'
while [ "$1" != -o ]; do shift; done
touch "$2"
"""


class Place:
    """Sources, a compiler, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "a cache"
        self.source, self.header = folder / "a source" / "mine.cpp", folder / "a source" / "mine.h"
        self.source.parent.mkdir()
        self.source.write_text('#include "mine.h"\n#include "core/declaration/library.h"\n')
        self.header.write_text('#include "below/other.h"\n')
        self.write_compiler()
        (folder / "version").write_text("1")

    def write_compiler(self, more: str = "") -> None:
        (self.folder / "c++").write_text(COMPILER.format(folder=self.folder, more=more))
        (self.folder / "c++").chmod(0o755)

    def load(self, *others: Path) -> tuple[str, int]:
        """The library that would be loaded, and the number of compiler calls."""
        log = self.folder / "log"
        log.write_text("")
        with building.compiled(building.read([self.source, *others])) as file:
            text = file.read_bytes()
        assert text.startswith(b"what was compiled\n")
        return file, len(log.read_text().splitlines())


COMPILED = 1 + len(FOR_LIBRARIES) + 1  # the source, its companions, and the library


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "a cache"))
    monkeypatch.setenv("CUDA", "0")
    monkeypatch.delenv("FUSEDOPS_CUDA_ARCHS", raising=False)
    return Place(tmp_path)


def test_unchanged_sources_are_compiled_once(place):
    file, calls = place.load()
    assert calls == COMPILED
    assert file.is_relative_to(place.cache)
    assert place.load() == (file, 0)
    assert [path.name for path in file.parent.iterdir() if path != file] == ["fusedops.lock"]


def test_equal_sources_elsewhere_are_the_same(place):
    file, _ = place.load()
    shutil.copytree(place.source.parent, place.folder / "copy")
    place.source = (place.folder / "copy" / "mine.cpp").rename(place.folder / "copy" / "renamed.cpp")
    assert place.load() == (file, 0)


@pytest.mark.parametrize("file", ["a source/mine.cpp", "a source/mine.h", "a source/below/other.h", "above.h"])
def test_a_change_of_a_source_or_a_header_compiles_again(place, file):
    (place.source.parent / "below").mkdir()
    (place.source.parent / "below/other.h").write_text('#  include "above.h"\n')
    (place.folder / "above.h").write_text("")
    first, _ = place.load()
    with (place.folder / file).open("a") as changed:
        changed.write("// changed\n")
    second, calls = place.load()
    assert calls == COMPILED and second != first
    with (place.folder / file).open("r+") as changed:  # and back
        text = changed.read().removesuffix("// changed\n")
    (place.folder / file).write_text(text)
    assert place.load() == (first, 0)


def test_other_flags_or_compilers_compile_again(place, monkeypatch):
    files = [place.load()[0]]
    monkeypatch.setenv("FUSEDOPS_CPU_FLAGS", "-O2")
    files.append(place.load()[0])
    monkeypatch.setenv("DEBUG", "1")
    files.append(place.load()[0])
    (place.folder / "version").write_text("2")
    files.append(place.load()[0])
    assert len(set(files)) == 4


@pytest.mark.parametrize("variable", ["FUSEDOPS_CPU_FLAGS", "CXX"])
def test_another_processor_compiles_again_for_native_flags(place, monkeypatch, variable):
    """Machines that share a cache may have other processors."""
    loads = []
    for flags in ("-march=native", "-mtune=native", "-O1"):
        monkeypatch.setenv(variable, flags if variable == "FUSEDOPS_CPU_FLAGS" else f"{place.folder / 'c++'} {flags}")
        for processor in ("fast", "slow", "fast"):
            monkeypatch.setattr(options, "_processor", lambda processor=processor: processor)
            loads.append(place.load())
    files, calls = zip(*loads, strict=True)
    assert calls == (COMPILED, COMPILED, 0) * 2 + (COMPILED, 0, 0)
    assert len(set(files)) == 5


def test_created_files_are_private_to_the_user(place):
    before = os.umask(0)
    try:
        file, _ = place.load()
    finally:
        os.umask(before)
    folders = [folder for folder in file.parents if folder.is_relative_to(place.cache)]
    assert len(folders) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in (file, *folders)} == {0o700}


def of_another_user(path, monkeypatch):
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)


@pytest.mark.parametrize("level", range(4), ids=["file", "its folder", "libraries", "the cache"])
@pytest.mark.parametrize("change", ["group", "others", "owner"])
def test_files_writable_by_others_are_refused(place, monkeypatch, level, change):
    """Neither loaded nor compiled, with or without a compiler; once the advice is followed, the library is loaded."""
    file, _ = place.load()
    path = (file, *file.parents)[level]
    if change == "owner":
        of_another_user(path, monkeypatch)
        sentence = r"belong to this user or to root, since .*\. Set FUSEDOPS_CACHE_DIR to a folder of your own$"
        path = path if os.geteuid() == 0 else place.cache
    else:
        path.chmod(0o720 if change == "group" else 0o702)
        sentence = r"be writable by its owner alone, since .*; got mode 07[02][02]\. Run: (chmod -R go-w '.*')$"
    for has_compiler in (True, False):
        if not has_compiler:
            (place.folder / "c++").rename(place.folder / "c++ elsewhere")
        with pytest.raises(BuildError) as raised:
            place.load()
        found = re.match(f"{re.escape(str(path))} must {sentence}", str(raised.value))
        assert found, raised.value
        assert (place.folder / "log").read_text() == ""
    if change != "owner":
        subprocess.run(found[1], shell=True, check=True)
        assert place.load() == (file, 0)


def test_files_of_root_are_loaded(place, monkeypatch):
    """A cache for all users of a machine."""
    file, _ = place.load()
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        whole = Path.stat
        monkeypatch.setattr(Path, "stat", lambda path: SimpleNamespace(st_uid=0, st_mode=whole(path).st_mode))
    assert cache.fault(place.cache, *file.parents[:2], file) is None


def test_kernels_are_not_cached_in_a_folder_writable_by_others(tmp_path, monkeypatch):
    """Every process compiles them again, and warns."""
    folder = tmp_path / "new" / "cache"
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(folder))
    assert compiler._cache() == str(folder)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
    folder.chmod(0o702)
    with pytest.warns(UserWarning, match=rf"^fusedops: kernels are compiled again by every process: {folder} must be "):
        assert compiler._cache() == ""
    (tmp_path / "a file").touch()
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "a file" / "below"))
    assert compiler._cache() == ""


FIND = """
#include <cstdio>
#include "core/program/kernel_cache.h"
int main(int, char** arguments) {
  using namespace fusedops::program;
  if (arguments[2][0] == 'k') keep_kernel(arguments[1], "a key", "the code");
  std::printf("%s", find_kernel(arguments[1], "a key").c_str());
}
"""


def test_a_kernel_writable_by_others_is_not_found(tmp_path):
    """Tests the core's own code, without a GPU."""
    need_compiler()
    (tmp_path / "find.cpp").write_text(FIND)
    sources = [tmp_path / "find.cpp", ROOT / CORE / "core/program/kernel_cache.cpp"]
    command = ["g++", "-std=c++20", f"-I{ROOT / CORE}", "-o", tmp_path / "find", *sources]
    subprocess.run(command, check=True)
    folder = tmp_path / "kernels"
    folder.mkdir()

    def run(what):
        return subprocess.run([tmp_path / "find", folder, what], capture_output=True, text=True, check=True).stdout

    def file():
        (path,) = folder.iterdir()
        return path

    assert run("find") == ""
    assert run("keep") == "the code"
    for change in ("mode", "owner") if os.geteuid() == 0 else ("mode",):
        assert stat.S_IMODE(file().stat().st_mode) == 0o600
        assert run("find") == "the code"
        file().chmod(0o620) if change == "mode" else os.chown(file(), 12345, -1)
        assert run("find") == ""
        assert run("keep") == "the code"  # replaced
        assert file().stat().st_uid == os.geteuid()


def test_changed_headers_of_the_core_compile_again(place, monkeypatch):
    sources = place.folder / "sources"
    shutil.copytree(ROOT / CORE, sources / CORE)
    monkeypatch.setattr(building, "_core", lambda: sources / CORE)
    first, _ = place.load()
    with (sources / CORE / "core/common/numeric.h").open("a") as header:
        header.write("// changed\n")
    second, calls = place.load()
    assert calls == COMPILED and second != first


@pytest.mark.parametrize("damage", ["short", "empty", "foreign", "moved"])
def test_damaged_files_are_compiled_again(place, damage):
    file, _ = place.load()
    whole = file.read_bytes()
    if damage == "moved":
        place.header.write_text("// changed")
        other, _ = place.load()
        whole, file = other.read_bytes(), other
        place.header.write_text('#include "below/other.h"\n')
        file, _ = place.load()
        shutil.copy(other, file)
    else:
        file.write_bytes({"short": whole[:-5], "empty": b"", "foreign": b"not compiled here" * 10}[damage])
    assert place.load() == (file, COMPILED)
    assert place.load() == (file, 0)


@pytest.mark.parametrize("name", ["a file", "/proc"])
def test_a_cache_that_cannot_be_written_is_ignored(place, monkeypatch, name):
    """Not even root can create files in /proc, which exists and belongs to root."""
    (place.folder / "a file").touch()
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(place.folder / name))
    file, calls = place.load()
    assert calls == COMPILED and not file.exists()


def test_no_cache_at_all(place, monkeypatch):
    for variable in ("FUSEDOPS_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    file, calls = place.load()
    assert calls == COMPILED and not file.exists()
    monkeypatch.setenv("HOME", str(place.folder))
    assert place.load()[0].is_relative_to(place.folder / ".cache/fusedops/libraries")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.folder / "xdg"))
    assert place.load()[0].is_relative_to(place.folder / "xdg/fusedops/libraries")


def test_cached_libraries_load_without_a_compiler(place):
    file, _ = place.load()
    (place.folder / "c++").unlink()
    assert place.load() == (file, 0)
    place.header.write_text("// changed")
    with pytest.raises(BuildError, match=r"^the compiler .*/c\+\+ was not found, or does not run; install g\+\+"):
        place.load()


def test_a_failure_leaves_no_files(place):
    place.write_compiler(more="echo 'folder0/mine.cpp:1: error: no' >&2; exit 1")
    with pytest.raises(BuildError) as raised:
        place.load()
    assert str(raised.value).startswith(f"the compiler failed: {place.source}:1: error: no\n")
    (folder,) = (place.cache / "libraries").iterdir()
    assert [path.name for path in folder.iterdir()] == ["fusedops.lock"]
    (folder / "compiling-killed").mkdir()  # by a killed process
    place.write_compiler()
    _, calls = place.load()
    assert calls == COMPILED and not (folder / "compiling-killed").exists()


def test_a_source_that_changes_during_compilation_is_compiled_again(place):
    place.write_compiler(more=f"echo '// changed' >> '{place.source}'")
    with pytest.raises(BuildError, match=r"^a source was changed while it was compiled; load it again$"):
        place.load()
    place.write_compiler()
    assert place.load()[1] == COMPILED


CODE = """
import sys
from pathlib import Path
from fusedops.building import library
with library.compiled(library.read([Path(sys.argv[1])])) as file:
    print(file, len(file.read_bytes()))
"""


def test_one_of_several_processes_compiles(place):
    place.write_compiler(more="sleep 0.2")
    (place.folder / "log").write_text("")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CODE, str(place.source)]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(4)]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(outputs) == 1
    assert len((place.folder / "log").read_text().splitlines()) == COMPILED


def test_an_installed_package_brings_its_headers(place):
    """Without a checkout they are in the package."""
    copy = copy_without_libraries(place.folder)
    sources = copy / "fusedops/_sources"
    if not sources.exists():
        shutil.copytree(ROOT / CORE, sources / CORE)
    code = f"import sys\nsys.argv = ['', {str(place.source)!r}]\n" + CODE
    done = python(code, folder=copy)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(sources)
    done = python(code, folder=copy)
    assert "BuildError: the sources are not in " in done.stderr.splitlines()[-1]


def test_kernels_are_compiled_if_nvcc_is_installed(place, monkeypatch):
    """Runs on any machine: the fake toolkit is a few files."""
    toolkit, kernel = place.folder / "toolkit", place.source.parent / "mine.cu"
    kernel.touch()
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    of_cpu, calls = place.load(kernel)  # CUDA=0
    assert calls == COMPILED
    (toolkit / "bin/nvcc").write_text(NVCC.format(folder=place.folder))
    (toolkit / "bin/nvcc").chmod(0o755)
    monkeypatch.delenv("CUDA")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.setattr(building, "_gpus_here", list)
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert place.load(kernel) == (of_cpu, 0)  # no GPU
    files = []
    for architectures in ("8.0", "9.0+PTX"):
        monkeypatch.setenv("FUSEDOPS_CUDA_ARCHS", architectures)
        file, calls = place.load(kernel)
        assert calls == COMPILED + 1
        files.append(file)
        log = (place.folder / "log").read_text()
        (line,) = (line for line in log.splitlines() if line.startswith("nvcc "))
        number = architectures[0] + "0"
        assert f"-gencode=arch=compute_{number},code=sm_{number}" in line and "-DFUSEDOPS_WITH_CUDA" in line
        assert " -Icore_cuda " in line and " -c folder0/mine.cu " in line  # the user's paths are not in it
        assert "libcudart_static.a" in log
    assert len({of_cpu, *files}) == 3
