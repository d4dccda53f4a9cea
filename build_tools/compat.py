"""python -m build_tools.compat [arguments of pytest]: the tests of PyTorch on one wheel, in several environments.

The wheel is the newest in dist/, or is built. The tests run in a copy of the checkout without the package, so they
import the installed wheel. TensorFlow is not tested: its binding works with one version of TensorFlow only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from build_tools.wheel import build_wheel

# (torch, Python): the oldest supported torch, the newest release, and two in between; every Python once.
ENVIRONMENTS = (("2.10.0", "3.10"), ("2.11.0", "3.12"), ("2.13.0", "3.11"), ("2.15.0", "3.13"))
NAMES = ("pytest", "pytest-xdist", "hypothesis", "numpy", "ml_dtypes", "ninja", "transformers")
PACKAGES = ["--constraint", "requirements.txt", *NAMES]
FOLDER = Path("build/compat").resolve()


@dataclass(frozen=True)
class Result:
    torch: str
    python: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0
    problem: str = ""  # the reason if no test was run

    def __str__(self) -> str:
        entry = f"{self.torch:8}  {self.python:6}  "
        if self.problem:
            return entry + self.problem
        return entry + f"{self.passed:7}  {self.failed:7}  {self.skipped:7}  {self.seconds:7.0f}"


def main(arguments: list[str]) -> None:
    wheels = sorted(Path("dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    wheel = wheels[-1] if wheels else build_wheel()
    print(f"fusedops: testing {wheel}", flush=True)
    results = [_test(wheel.resolve(), torch, python, arguments) for torch, python in ENVIRONMENTS]
    print(f"\n{wheel.name}\n\ntorch     Python   passed   failed  skipped  seconds")
    print(*results, sep="\n")
    if any(result.failed for result in results):
        raise SystemExit("fusedops: there were failures")


def _test(wheel: Path, torch: str, python: str, arguments: list[str]) -> Result:
    interpreter = next(_interpreters(python), None)
    if not interpreter:
        return Result(torch, python, problem=f"skipped: there is no Python {python} here")
    print(f"\nfusedops: torch {torch}, Python {python}", flush=True)
    folder = FOLDER / f"torch{torch}-python{python}"
    venv_python = folder / "bin/python"
    if not venv_python.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    checkout = _checkout(folder / "checkout")
    for packages in ([f"torch=={torch}"], PACKAGES, ["--no-deps", "--force-reinstall", str(wheel)]):
        if _run(checkout, venv_python, "-m", "pip", "install", "--quiet", *packages):
            return Result(torch, python, failed=1, problem=f"failed: pip install {' '.join(packages)}")
    report = folder / "results.xml"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    code = _run(checkout, venv_python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments)
    seconds = time.monotonic() - start
    if code not in (0, 1) or not report.exists():  # 1: there were failures
        return Result(torch, python, failed=1, problem=f"failed: pytest ended with {code}")
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    return Result(torch, python, int(suite["tests"]) - failed - skipped, failed, skipped, seconds)


def _checkout(folder: Path) -> Path:
    """A copy of the checkout without the package and build outputs."""
    shutil.rmtree(folder, ignore_errors=True)
    left_out = shutil.ignore_patterns(".git", ".*cache", ".venv", "__pycache__", "build", "dist", "fusedops")
    shutil.copytree(".", folder, ignore=left_out)
    return folder


def _run(folder: Path, *command: str | Path) -> int:
    # The Makefile's PYTHONPATH would make the checkout's package importable.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment).returncode


def _interpreters(version: str) -> Iterator[str]:
    """Working interpreters of this version; a name on the PATH may be a pyenv shim without one."""
    name = f"python{version}"
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [folder / name for folder in folders] + sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"))
    program = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        if candidate.exists():
            done = subprocess.run([candidate, "-c", program], capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip() == version:
                yield str(candidate)


if __name__ == "__main__":
    main(sys.argv[1:])
