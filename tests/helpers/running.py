"""Runs an example, a piece of code or a program of the tests in its own process, whatever is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fusedops
from fusedops.building.cuda import gpus_here

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = ROOT / "tests" / "programs"

# Runs the example as if a module, the first argument, were not installed.
WITHOUT = """
import runpy, sys
from importlib.machinery import PathFinder

_, missing, train, *arguments = sys.argv
for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
    del sys.modules[name]
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == missing else find_spec(name, *rest)
sys.argv = [train, *arguments]
sys.path.insert(0, train.rpartition("/")[0])
runpy.run_path(train, run_name="__main__")
"""

TIMEOUT = 600  # limit of a process, in seconds


def interpreter(
    *arguments: str | Path, env: dict[str, str], cwd: Path | None = None, is_new: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs `python *arguments` in its own process. Not thread-safe.

    The process is forked from a server that has imported the frameworks, since imports take longer than most programs.
    `is_new` starts a new interpreter, for programs that depend on imports or on variables that are read during import.
    Modules (`-m`) get a new one, since they start processes themselves. With a GPU all programs do: CUDA does not
    survive a fork."""
    command = [sys.executable, *map(str, arguments)]
    if is_new or arguments[0] == "-m" or _has_gpu():
        return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        job = {"arguments": command[1:], "environment": env, "folder": str(cwd or Path.cwd()), "seconds": TIMEOUT}
        server = _fork_server()
        print(json.dumps({**job, "outputs": list(map(str, outputs))}), file=server.stdin, flush=True)
        assert server.stdout
        answer = server.stdout.readline()
        if not answer:
            _fork_server.cache_clear()
            raise RuntimeError(f"the server of processes ended with status {server.wait()}")
        code = int(answer)
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(command, TIMEOUT)
        return subprocess.CompletedProcess(command, code, *(output.read_text() for output in outputs))


_has_gpu = cache(gpus_here)


@cache
def _fork_server() -> subprocess.Popen[str]:
    """The server ends when its input is closed, at the end of this process."""
    command = [sys.executable, PROGRAMS / "fork_server.py"]
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def environment(device: str, **variables: str) -> dict[str, str]:
    """The variables of a process that has this process's packages and uses this kind of device. A visible GPU is
    TensorFlow's default device."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | hidden | variables


def python_path(folder: Path) -> str:
    """The PYTHONPATH of a process that imports the package in `folder`, and everything else as this process does."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != ROOT]
    return os.pathsep.join([str(folder), *others])


def run_program(
    name: str,
    *arguments: str | Path,
    device: str = "cpu",
    cwd: Path | None = None,
    is_new: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs one of tests/programs/ in its own process."""
    return interpreter(PROGRAMS / name, *arguments, env=environment(device, **variables), cwd=cwd, is_new=is_new)


def run_ranks(name: str, *arguments: str, device: str, world: int, folder: Path, timeout: float = 400) -> list[str]:
    """Runs one of tests/programs/ once per rank, on the CPU with gloo, on GPUs with NCCL; returns each rank's output.

    A program gets the arguments, the kind of device, its rank, the number of ranks and a new file for their store.
    """
    # Not every machine resolves its host name or supports NVLink multicast.
    variables = environment(device, GLOO_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0")
    logs = [folder / f"{rank}.log" for rank in range(world)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, PROGRAMS / name, *arguments, device, str(rank), str(world), folder / "store"]
            with log.open("w") as output:
                ranks.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables))
        end = time.monotonic() + timeout
        codes = [process.wait(timeout=max(0, end - time.monotonic())) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for code, log in zip(codes, logs, strict=True):
        assert code == 0, log.read_text()
    return [log.read_text() for log in logs]


def check_ranks(name: str, backend: Any, world: int, sections: Sequence[str], folder: Path) -> None:
    """Runs sections of one of tests/programs/ once per rank. Each rank must print the name of each section."""
    if backend.device == "cuda" and backend.gpus() < world:
        pytest.skip("GPU: too few")
    for log in run_ranks(name, ",".join(sections), device=backend.device, world=world, folder=folder):
        assert [line for line in log.splitlines() if line in sections] == [*sections]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return interpreter(*arguments, env=os.environ | {"COLUMNS": "100"}, cwd=cwd)


def python(
    code: str, *, folder: Path = ROOT, is_new: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the code with the package in `folder`."""
    variables = os.environ | {"PYTHONPATH": python_path(folder), "TF_CPP_MIN_LOG_LEVEL": "3"} | variables
    return interpreter("-c", code, env=variables, cwd=folder, is_new=is_new)


def copy_without_libraries(folder: Path) -> Path:
    """A copy of the package inside `folder`, without built libraries and a wheel's sources; returns the copy's
    folder."""
    copy = folder / "with a space"
    package = Path(fusedops.__file__).parent
    left_out = shutil.ignore_patterns("*.so", "_build.json", "__pycache__", "_sources")
    shutil.copytree(package, copy / "fusedops", ignore=left_out)
    return copy


def compiled(source: Path, output: Path, *flags: str) -> Path:
    """The program or library that g++ compiles from a source. Skips the test if g++ is not installed."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("g++ is not installed")
    subprocess.run([compiler, *flags, "-o", output, source], check=True)
    return output


def skip_without(modules: tuple[str, ...]) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the example needs {module}")


def need_inductor() -> None:
    """Skips the test if the path of torch has a space: its compiler for CPUs does not quote the path in the linker
    command."""
    torch = importlib.util.find_spec("torch")
    if torch and " " in str(torch.origin):
        pytest.skip("torch's compiler fails where torch itself is in a path with a space")


def run_without_package(backend: Any, program: str, *arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the program in a process that cannot import the package."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    elsewhere = [folder for folder in folders if folder and not Path(folder, "fusedops").exists()]
    variables = {"PYTHONPATH": os.pathsep.join(elsewhere)}
    return run_program(program, *arguments, device=backend.device, cwd=cwd, **variables)


def blocks(kind: str, markdown: str) -> list[str]:
    """The code blocks of one language on a page."""
    return re.findall(rf"^```{kind}\n(.*?)\n```$", markdown, re.M | re.S)
