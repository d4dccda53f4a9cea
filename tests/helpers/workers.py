"""Parallel processes of pytest, started by pytest-xdist: their number, and tests that must run alone."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import IO, Any

import pytest

from fusedops.building.cuda import gpus_here

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
MAX_WORKERS_PER_GPU = 8  # each uses about 2 GB of its memory: two frameworks, their libraries and caches

if IS_WORKER:
    # The cores are taken. Two threads rather than one, so that kernels that divide their work are tested.
    os.environ |= {"OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    workers = yield
    return min(workers, MAX_WORKERS_PER_GPU) if gpus_here() else workers


@pytest.fixture(autouse=True)
def _shared_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[IO[str], IO[str]] | None]:
    """A fair reader-writer lock over the processes of pytest. Tests hold `lock` shared. An exclusive test holds
    `turnstile` while it waits for `lock`."""
    if not IS_WORKER:
        yield None
        return
    folder = shared_folder(tmp_path_factory)
    with (folder / "turnstile").open("w") as turnstile, (folder / "lock").open("w") as lock:
        flock(turnstile, LOCK_EX)
        flock(lock, LOCK_SH)
        flock(turnstile, LOCK_UN)
        yield turnstile, lock


@pytest.fixture
def alone(_shared_lock: tuple[IO[str], IO[str]] | None) -> None:
    """For a test that measures time or fills a GPU: no other test runs meanwhile."""
    if _shared_lock:
        turnstile, lock = _shared_lock
        flock(lock, LOCK_UN)
        flock(turnstile, LOCK_EX)
        flock(lock, LOCK_EX)
        flock(turnstile, LOCK_UN)


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder shared by all processes of this run of pytest."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if IS_WORKER else folder


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """The result of make(folder), which must survive JSON. One process of pytest makes it in a shared folder; the
    others wait for it. If it fails, each process tries."""
    place = shared_folder(tmp_path_factory) / name
    place.mkdir(exist_ok=True)
    result = place / "result.json"
    with (place / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not result.exists():
            made = make(Path(tempfile.mkdtemp(dir=place)))
            result.write_text(json.dumps(made))
        return json.loads(result.read_text())
