"""Writes and runs a ninja file."""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fusedops.building.options import BuildError

Show = Callable[[int, int, str], None]  # steps done, steps in all, the last one


def _path(path: Path | str) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def command(arguments: Iterable[Path | str]) -> str:
    """A shell command in which $in and $out are left to ninja."""
    words = [shlex.quote(str(a)).replace("$", "$$") for a in arguments]
    return " ".join(word.replace("'$$in'", "$in").replace("'$$out'", "$out") for word in words)


class NinjaFile:
    def __init__(self, folder: Path, root: Path = Path()):
        """`root`: the folder that holds the sources. Ninja runs there, and all paths, `folder` too, start there: so no
        space in its own path reaches a compiler."""
        self.folder = folder
        self.root = root
        self._text = f"builddir = {_path(folder)}\n"

    def sources(self, folder: Path, pattern: str) -> list[Path]:
        """The files below a folder."""
        return sorted(path.relative_to(self.root) for path in (self.root / folder).rglob(pattern))

    def rule(self, name: str, arguments: Iterable[Path | str], *, description: str, headers: bool = False) -> None:
        """`headers`: the compiler writes which headers were read, and ninja compiles again when one of them changes."""
        arguments = [*arguments, "-MMD", "-MF", "$out.d"] if headers else arguments
        text = command(arguments).replace("'$$out.d'", "$out.d")
        self._text += f"\nrule {name}\n  command = {text}\n  description = {description}\n"
        if headers:
            self._text += "  depfile = $out.d\n  deps = gcc\n"

    def build(self, output: Path, rule: str, inputs: Iterable[Path], implicit: Iterable[Path] = ()) -> Path:
        line = f"build {_path(output)}: {rule} " + " ".join(map(_path, inputs))
        others = " ".join(map(_path, implicit))
        self._text += line + (f" | {others}" if others else "") + "\n"
        return output

    def write(self) -> Path:
        (self.root / self.folder).mkdir(parents=True, exist_ok=True)
        path = self.folder / "build.ninja"
        (self.root / path).write_text(self._text)
        return path

    def run(self, jobs: int, *arguments: str, show: Show | None = None) -> None:
        """`show`: what is told of every step; without it ninja prints them itself."""
        words = [find_ninja(), "-f", str(self.write()), "-j", str(jobs), *arguments]
        # torch's own build runs "ninja" by that name.
        environment = {**os.environ, "PATH": path_with_ninja(), "NINJA_STATUS": "[%f/%t] "}
        if show:
            _run_shown(words, self.root, environment, show)
        elif subprocess.run(words, cwd=self.root, env=environment, close_fds=False).returncode:
            raise BuildError("the build failed; the first error is above")


def _run_shown(words: list[str], folder: Path, environment: dict[str, str], show: Show) -> None:
    said = ""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "close_fds": False}
    with subprocess.Popen(words, cwd=folder, env=environment, text=True, errors="replace", **streams) as ninja:  # type: ignore[call-overload]
        for line in ninja.stdout:
            step = re.match(r"\[(\d+)/(\d+)\] (.*)", line)
            if step:
                show(int(step[1]), int(step[2]), step[3])
            else:
                said += line
    if ninja.returncode:
        raise BuildError(f"the compiler failed in {folder}\n{said}")


def find_ninja() -> str:
    try:
        installed = Path(importlib.import_module("ninja").BIN_DIR, "ninja")
    except ImportError:
        installed = Path()
    program = str(installed) if installed.is_file() else shutil.which("ninja")
    if not program:
        raise BuildError("the build needs ninja. Run: pip install ninja")
    return program


def path_with_ninja() -> str:
    return f"{Path(find_ninja()).parent}{os.pathsep}{os.environ.get('PATH', '')}"


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Two builds in one folder wait for each other, and for the compilers that a build left behind when it was killed:
    they inherit the lock, through `close_fds=False`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not "lock": that is torch.utils.cpp_extension's name for a file of its own, which it removes.
    with open(folder / "fusedops.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"fusedops: waiting for another build in {folder.resolve()}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        try:
            yield
        finally:
            # Closing it would not do where a compiler started a server that lives on, as sccache does.
            fcntl.flock(lock, fcntl.LOCK_UN)
