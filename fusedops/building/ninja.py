"""Writes and runs a ninja file."""

from __future__ import annotations

import fcntl
import importlib
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from fusedops.building.options import BuildError, cached
from fusedops.building.progress import Show


def _path(path: Path | str) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def command(arguments: Iterable[Path | str]) -> str:
    """A shell command in which $in and $out remain ninja variables."""
    words = [shlex.quote(str(a)).replace("$", "$$") for a in arguments]
    return " ".join(word.replace("'$$in'", "$in").replace("'$$out'", "$out") for word in words)


class NinjaFile:
    def __init__(self, folder: Path, root: Path = Path()):
        """`root`: the folder that holds the sources. Ninja runs there, and all paths, including `folder`, are relative
        to it, so that spaces in its own path do not reach a compiler."""
        self.folder = folder
        self.root = root
        self._text = f"builddir = {_path(folder)}\n"

    def sources(self, folder: Path, pattern: str) -> list[Path]:
        """The files below a folder."""
        return sorted(path.relative_to(self.root) for path in (self.root / folder).rglob(pattern))

    def rule(self, name: str, arguments: Iterable[Path | str], *, description: str, headers: bool = False) -> None:
        """`headers`: True for a compiler's rule. The compiler lists the headers it reads, and ninja recompiles when one
        changes. ccache or sccache is used if installed."""
        arguments = cached([*map(str, arguments), "-MMD", "-MF", "$out.d"]) if headers else arguments
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

    def run(self, jobs: int, *arguments: str, show: Show) -> str:
        """Builds stale outputs and returns the compilers' output, such as warnings.

        Raises:
            BuildError: A compiler failed; the message has its output.
        """
        words = [find_ninja(), "-f", str(self.write()), "-j", str(jobs), *arguments]
        # torch's build runs "ninja" from the PATH.
        environment = {**os.environ, "PATH": path_with_ninja(), "NINJA_STATUS": "[%s/%f/%t] ", "TERM": "xterm"}
        running, messages = list[str](), list[str]()
        with (
            _terminal() as (screen, output),
            subprocess.Popen(
                words, cwd=self.root, env=environment, stdout=screen, stderr=screen, close_fds=False
            ) as ninja,
        ):
            os.close(screen)
            for line in output:
                step = re.match(r"\[(\d+)/(\d+)/(\d+)\] (.*)", line)
                if not step:
                    if not line.startswith("ninja: "):  # such as "no work to do"
                        messages.append(line)
                    continue
                begun, done, steps, what = int(step[1]), int(step[2]), int(step[3]), step[4]
                if begun > done + len(running):
                    running.append(what)
                    show(done, steps, what, running)
                elif what in running:
                    running.remove(what)
                    show(done, steps, "", running)
        text = "\n".join(messages).strip("\n")
        if ninja.returncode:
            raise BuildError(f"the compiler failed in {self.root.resolve()}\n{text}")
        return text


@contextmanager
def _terminal() -> Iterator[tuple[int, Iterator[str]]]:
    """A pseudo-terminal and the lines written to it. Ninja announces the start of a step only on a terminal."""
    reader, screen = pty.openpty()
    # Ninja truncates lines to the terminal's width.
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 10_000, 0, 0))
    with open(reader, "rb", buffering=0) as stream:
        yield screen, _lines(stream)


def _lines(stream: FileIO) -> Iterator[str]:
    """The lines, without terminal control sequences. A carriage return also ends a line."""
    rest = b""
    while True:
        try:
            read = stream.read(65536)
        except OSError:  # end of file of a pseudo-terminal on Linux
            read = b""
        *lines, rest = re.split(rb"[\r\n]+", rest + (read or b""))
        for line in lines if read else [*lines, rest]:
            text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.decode(errors="replace"))
            if text:
                yield text
        if not read:
            return


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
    """Holds the lock of a build folder. Compilers inherit it through `close_fds=False`: a build also waits for the
    compilers that a killed build left running."""
    folder.mkdir(parents=True, exist_ok=True)
    # Not named "lock": torch.utils.cpp_extension creates and removes a file of that name.
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
            # Closing the file is not enough if a compiler started a server that stays alive, as sccache does.
            fcntl.flock(lock, fcntl.LOCK_UN)
