"""fusedops.torch.jit.load(), from a copy of the package as in a wheel without libraries."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fusedops import loading
from fusedops.building import jit, options
from fusedops.building.progress import progress
from tests.helpers.running import copy_without_libraries, python
from tests.helpers.workers import once

LOAD = """
import fusedops
fo = fusedops.torch.jit.load()
import torch
assert fo.axpby(2.0, torch.ones(3), torch.arange(3.0)).tolist() == [2, 3, 4]
"""
REFUSED = "import fusedops; fusedops.torch.jit.load()"
WITHOUT_CUTLASS = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "cutlass_library" else find_spec(name, *rest)
"""
OPTIONS = {"DEBUG": "1", "FUSEDOPS_CPU_FLAGS": "-g0"}


def keep_one_folder(core, name):
    """Removes all other operators from the sources: they take most of the time to compile, and `make build` compiles
    them with the same commands."""
    declarations = "".join(header.read_text() for header in (core / "ops" / name).glob("*.h"))
    kept = "|".join(re.findall(r"^Operator (\w+)\(\);", declarations, re.M))
    table = core / "operators.cpp"
    others = rf'^(#include "ops/(?!{name}/).*| *(?!({kept})\(\),)\w+\(\),)\n'
    table.write_text(re.sub(others, "", table.read_text(), flags=re.M))
    for folder in (core / "ops").iterdir():
        if folder.name != name:
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the copy."""
    if loading.FRAMEWORKS["torch"].installed() is None:
        pytest.skip("PyTorch is not installed")

    def make(place):
        copy = copy_without_libraries(place)
        for name in jit.FOLDERS:
            shutil.copytree(jit._sources() / name, copy / "fusedops/_sources" / name)
        keep_one_folder(copy / "fusedops/_sources" / jit.CORE, "elementwise")
        return str(copy)

    return Path(once(tmp_path_factory, "package", make))


@pytest.fixture
def load(folder, tmp_path):
    """Runs code with the copy, for the CPU alone, with an empty cache unless another is given."""

    def load(code, **variables):
        for_cpu = {"CUDA": "0", "TORCH_EXTENSIONS_DIR": str(tmp_path / "the cache"), "CXX": "g++"}
        return python(code, folder=folder, **(for_cpu | variables))

    return load


# Importing torch takes seconds: done once, for all processes.
STARTER = """
import ctypes, json, os, sys, traceback
import torch.utils.cpp_extension
from fusedops.building import jit

def build(attempts):
    for _ in range(attempts):
        try:
            ctypes.CDLL(jit._built(torch.__version__, print, True) / jit.LIBRARY)
            return 0
        except BaseException:
            traceback.print_exc()
    return 1

for line in sys.stdin:
    command, *arguments = json.loads(line)
    if command == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(*arguments, 0)[1]), flush=True)
        continue
    process = os.fork()
    if not process:
        os.environ["TORCH_EXTENSIONS_DIR"], output, attempts = arguments
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        code = build(attempts)
        sys.stdout.flush()
        os._exit(code)
    print(process, flush=True)
"""


@dataclass
class Race:
    """Processes that build in one cache: their sources compile fast, but the compiler is slow."""

    starter: subprocess.Popen
    log: Path  # the compiler's log
    folder: Path

    def _ask(self, *words):
        print(json.dumps(words), file=self.starter.stdin, flush=True)
        return int(self.starter.stdout.readline())

    def start(self, attempts=1):
        outputs = self.folder / f"{time.monotonic_ns()}"
        outputs.touch()
        return self._ask("start", str(self.folder / "the cache"), str(outputs), attempts), outputs

    def start_and_compile(self, source):
        """Returns while this source is being compiled."""
        self.log.write_text("")
        process = self.start()
        deadline = time.monotonic() + 300
        while source not in self.compiled():
            assert time.monotonic() < deadline and "Traceback" not in process[1].read_text(), process[1].read_text()
            time.sleep(0.05)
        return process

    def wait(self, process):
        return self._ask("wait", process[0]), process[1].read_text()

    def compiled(self):
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    if loading.FRAMEWORKS["torch"].installed() is None:
        pytest.skip("PyTorch is not installed")
    folder = tmp_path_factory.mktemp("race")
    copy = copy_without_libraries(folder)
    names = ("core_cuda/core.cpp", "torch_binding/binding.cpp", "torch_binding/exports.map", "torch_autograd/node.cpp")
    for name in names:
        source = copy / "fusedops/_sources" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("{};" if source.suffix == ".map" else "")
    # It sleeps before it reads the source.
    script = f"""#!/bin/sh
for word do case $word in *.cpp) echo "${{word##*/}}" >> '{folder}/log'; sleep 1;; esac; done
case "$*" in *binding.cpp*) if rm '{folder}/fails once' 2>/dev/null; then exit 1; fi;; esac
exec g++ "$@"
"""
    for program, text in (("ccache", '#!/bin/sh\nexec "$@"\n'), ("g++", script)):
        (copy / program).write_text(text)
        (copy / program).chmod(0o755)
    cxx = f"'{copy}/ccache' '{copy}/g++' -pipe"
    environment = os.environ | {"PYTHONPATH": str(copy), "CUDA": "0", "CXX": cxx}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", STARTER], env=environment, cwd=copy, text=True, **pipes) as starter:
        yield starter, folder / "log"
        starter.stdin.close()


@pytest.fixture
def race(starter, tmp_path):
    return Race(*starter, tmp_path)


@pytest.mark.parametrize("source", ["core.cpp", "binding.cpp"])
def test_other_processes_wait_while_one_compiles(race, source):
    processes = [race.start_and_compile(source), race.start(), race.start()]
    outputs = [race.wait(process) for process in processes]
    assert [code for code, _ in outputs] == [0, 0, 0], outputs
    assert all("waiting for another build in " in output for _, output in outputs[1:])
    assert race.compiled() == ["core.cpp", "binding.cpp", "node.cpp"]


@pytest.mark.parametrize("source", ["core.cpp", "binding.cpp"])
def test_a_process_killed_while_it_compiles_leaves_no_lock(race, source):
    killed = race.start_and_compile(source)
    os.kill(killed[0], signal.SIGKILL)
    race.wait(killed)
    code, output = race.wait(race.start())
    assert code == 0, output
    # Except for the core's compiler, which survives.
    assert ("waiting for another build in " in output) == (source == "core.cpp")


def test_a_process_may_retry_after_a_failure(race):
    (race.log.parent / "fails once").touch()
    code, output = race.wait(race.start(attempts=2))
    assert code == 0, output
    assert "the compiler failed in " in output


def test_a_library_that_is_damaged_is_linked_again(race):
    assert race.wait(race.start())[0] == 0
    (library,) = race.folder.glob("the cache/*/_C.abi3.so")
    size = library.stat().st_size
    library.write_bytes(b"")
    code, output = race.wait(race.start())
    assert code == 0, output
    assert library.stat().st_size == size


@pytest.fixture(scope="module")
def built(folder, tmp_path_factory):
    """The results of two processes that started at once with an empty cache; the cache; and the time taken. The only
    build of these tests: without optimization, which takes a third of the time, and without debug information."""

    def make(place):
        cache = str(place / "the cache")
        variables = {"PYTHONPATH": str(folder), "TORCH_EXTENSIONS_DIR": cache, "CUDA": "0", "CXX": "g++", **OPTIONS}
        environment = os.environ | variables
        command = [sys.executable, "-c", LOAD]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        start = time.monotonic()
        both = [subprocess.Popen(command, env=environment, cwd=folder, text=True, **pipes) for _ in range(2)]
        outputs = [process.communicate(timeout=900) for process in both]
        return outputs, [process.returncode for process in both], cache, time.monotonic() - start

    outputs, codes, cache, seconds = once(tmp_path_factory, "extensions", make)
    return outputs, codes, Path(cache), seconds


@pytest.mark.slow
def test_one_process_builds_and_another_waits(built):
    outputs, codes, cache, _ = built
    assert codes == [0, 0], outputs
    texts = [text for text, _ in outputs]
    compiling = [text for text in texts if re.search(r"^\[1/\d+\] c\+\+ core_cuda/", text, re.M)]
    assert len(compiling) == 1
    numbers = [int(n) for n in re.findall(r"^\[(\d+)/\d+\]", compiling[0], re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
    for text in texts:
        assert "building for the CPU only, because no GPU was found" in text or "CUDA=0" in text
        assert f"in {cache}" in text
        assert re.search(rf"^fusedops: loading {re.escape(str(cache))}/.*_C\.abi3\.so$", text, re.M)


@pytest.mark.slow
def test_a_later_process_only_loads(built, load):
    _, _, cache, seconds = built
    start = time.monotonic()
    # Neither ninja nor a compiler is available.
    done = load(LOAD, TORCH_EXTENSIONS_DIR=str(cache), PATH="/nowhere", **OPTIONS)
    assert done.returncode == 0, done.stderr
    assert "[1/" not in done.stdout and "building" not in done.stdout
    assert time.monotonic() - start < seconds


@pytest.mark.slow
def test_other_options_meet_another_library(built, load):
    code = """
from fusedops.building import jit
from fusedops.building.progress import progress
options, cuda, _ = jit._wanted()
print(jit._key(jit._sources(), options, cuda))
"""
    variables = [OPTIONS, OPTIONS | {"DEBUG": "0"}, OPTIONS | {"FUSEDOPS_CPU_FLAGS": "-O2"}]
    keys = [load(code, **each).stdout.strip() for each in variables]
    assert len(set(keys)) == len(keys)
    (cache,) = built[2].iterdir()
    assert cache.name.endswith(f"_{keys[0]}")


@pytest.mark.slow
def test_after_load_the_package_is_the_real_one(built, load):
    code = (
        LOAD
        + """
import fusedops.torch, fusedops.torch.jit
assert fo is fusedops.torch and fo.add.__module__ == "fusedops.torch"
assert fusedops.torch.jit.load() is fo
fusedops.show_config()
"""
    )
    done = load(code, TORCH_EXTENSIONS_DIR=str(built[2]), **OPTIONS)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^fusedops\.torch is loaded already, with .*_C\.abi3\.so$", done.stdout, re.M)
    assert re.search(rf"^  library    {re.escape(str(built[2]))}/.*_C\.abi3\.so$", done.stdout, re.M)
    assert "PyTorch" in done.stdout and ", debug" in done.stdout


@pytest.mark.slow
def test_it_can_be_silent(built, load):
    code = "import fusedops; fusedops.torch.jit.load(verbose=False)"
    done = load(code, TORCH_EXTENSIONS_DIR=str(built[2]), **OPTIONS)
    assert (done.returncode, done.stdout) == (0, "")


def test_before_load_every_use_names_the_remedy(load):
    done = load("import fusedops; assert not hasattr(fusedops.torch, '__path__'); fusedops.torch.axpby")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: fusedops.torch is not built")
    assert last.endswith("or in Python: import fusedops; fusedops.torch.jit.load()")


def test_a_compiler_that_fails(load):
    done = load(REFUSED, CXX="false")
    assert re.search(
        r"^RuntimeError: fusedops\.torch\.jit\.load: the compiler failed in .*/the cache/", done.stderr, re.M
    )
    assert "FAILED" in done.stderr


def test_a_cache_that_others_can_write(tmp_path, monkeypatch):
    """It is refused before any of its files are read."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "_key", lambda *arguments: "key")
    folder = tmp_path / f"fusedops_{jit.VERSION}_torch_2.99_key"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(
        jit.BuildError, match=rf"^{folder} must be writable by its owner alone, .*; got mode 0777\. Run: "
    ):
        jit._built("2.99", print, verbose=True)


def test_no_ninja(load):
    code = "import sys; sys.modules['ninja'] = None\n" + REFUSED
    done = load(code, PATH="/nowhere")
    last = done.stderr.splitlines()[-1]
    assert last == "RuntimeError: fusedops.torch.jit.load: the build needs ninja. Run: pip install ninja"


def test_a_bad_option(load):
    done = load(REFUSED, DEBUG="yes")
    assert done.stderr.splitlines()[-1] == "RuntimeError: fusedops.torch.jit.load: DEBUG must be 0 or 1; got yes"


def test_missing_sources(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "fusedops/_sources")
    last = python(REFUSED, folder=copy, CUDA="0").stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: fusedops.torch.jit.load: the sources are not in ")


def test_gpus_need_the_headers_of_cutlass(load, tmp_path):
    """Runs on any machine: the fake toolkit is a few empty files."""
    toolkit = tmp_path / "toolkit"
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    (toolkit / "bin/nvcc").write_text("#!/bin/sh\necho release 13.0\n")
    (toolkit / "bin/nvcc").chmod(0o755)
    done = load(WITHOUT_CUTLASS + REFUSED, CUDA="1", CUDA_HOME=str(toolkit), FUSEDOPS_CUDA_ARCHS="9.0")
    assert done.stderr.splitlines()[-1] == (
        "RuntimeError: fusedops.torch.jit.load: the headers of CUTLASS were not found "
        "(pip install --no-deps nvidia-cutlass==4.2.0.0); CUDA=0 builds for the CPU only"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(monkeypatch, capsys, terminal):
    if terminal:
        pytest.importorskip("rich")
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich then assumes a terminal
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)  # as if rich was not installed
    with progress(print, verbose=True) as show:
        show(0, 2, "c++ ops/add.cpp", ["c++ ops/add.cpp"])
        show(1, 2, "")
        show(1, 2, "c++ ops/relu.cpp", ["c++ ops/relu.cpp"])
        show(2, 2, "")
    text = capsys.readouterr().out
    if terminal:
        assert "2/2" in text
    else:
        assert text == "[1/2] c++ ops/add.cpp\n[2/2] c++ ops/relu.cpp\n"


def test_objects_are_named_apart():
    """torch names an object after its source alone."""
    names = [path.stem for path in (jit._sources() / jit.binding.BINDING).glob("*.cpp")]
    assert len(set(names)) == len(names)


def test_native_stands_for_the_processor_in_cpuinfo(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Fast\nflags\t: fma\nMHz\t: 1\n\nprocessor\t: 1\nflags\t: fma\n")
    assert options._processor(file) == "model name\t: Fast\nflags\t: fma"
    assert options._processor(Path("/nowhere")) == ""
