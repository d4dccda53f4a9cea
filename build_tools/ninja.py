"""Writes and runs a ninja file."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


def _path(path: Path | str) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def command(arguments: Iterable[Path | str]) -> str:
    """A shell command in which $in and $out are left to ninja."""
    words = [shlex.quote(str(a)).replace("$", "$$") for a in arguments]
    return " ".join(word.replace("'$$in'", "$in").replace("'$$out'", "$out") for word in words)


class NinjaFile:
    def __init__(self, folder: Path):
        self.folder = folder
        self._text = f"builddir = {_path(folder)}\n"

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
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "build.ninja"
        path.write_text(self._text)
        return path

    def run(self, jobs: int, *arguments: str) -> None:
        program = find_ninja()
        # torch's own build runs "ninja" by that name.
        environment = {**os.environ, "PATH": f"{Path(program).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        done = subprocess.run([program, "-f", str(self.write()), "-j", str(jobs), *arguments], env=environment)
        if done.returncode:
            raise SystemExit("fusedops: the build failed; the first error is above")


def find_ninja() -> str:
    try:
        installed = Path(importlib.import_module("ninja").BIN_DIR, "ninja")
    except ImportError:
        installed = Path()
    program = str(installed) if installed.is_file() else shutil.which("ninja")
    if not program:
        raise SystemExit("fusedops: the build needs ninja. Run: pip install ninja")
    return program
