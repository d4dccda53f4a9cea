"""Folders of compiled libraries and of kernels of expressions.

Code is loaded only from files and folders that no other user can change, as ssh does with keys.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from pathlib import Path

VARIABLE = "FUSEDOPS_CACHE_DIR"


def folder() -> Path | None:
    """This user's cache, which may not exist yet; None if no environment variable names a place."""
    for variable, below in ((VARIABLE, ""), ("XDG_CACHE_HOME", "fusedops"), ("HOME", ".cache/fusedops")):
        if os.environ.get(variable):
            return Path(os.environ[variable], below).absolute()
    return None


def create(folder: Path) -> None:
    """Creates a folder, and the missing ones above it, with mode 0700."""
    if not folder.is_dir():
        create(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def fault(cache: Path, *below: Path, variable: str = VARIABLE) -> str | None:
    """Why code in a cache is not loaded and what to do, one sentence each; None if it can be loaded.

    Args:
        cache: the folder.
        below: the folders and files in it that are used. Missing ones are ignored.
        variable: the environment variable that selects another folder.
    """
    for path in (cache, *below):
        try:
            facts = path.stat()
        except OSError:
            continue
        if facts.st_uid not in (os.geteuid(), 0):
            expected, got = "belong to this user or to root", f"the owner {_name(facts.st_uid)}"
            remedy = f"Set {variable} to a folder of your own"
        elif facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            expected, got = "be writable by its owner alone", f"mode {stat.S_IMODE(facts.st_mode):04o}"
            remedy = f"Run: chmod -R go-w {shlex.quote(str(cache))}"
        else:
            continue
        return f"{path} must {expected}, since code is loaded from it; got {got}. {remedy}"
    return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
