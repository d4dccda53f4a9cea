"""Several processes of pytest at once, which pytest-xdist starts: how many, and which tests none may disturb."""

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
MOST_BESIDE_A_GPU = 8  # each holds about 2 GB of its memory: two frameworks, their libraries and what they keep

if IS_WORKER:
    # The cores are taken. Two threads, and not one, since kernels that divide their work are to be tested.
    os.environ |= {"OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    workers = yield
    return min(workers, MOST_BESIDE_A_GPU) if gpus_here() else workers


@pytest.fixture(autouse=True)
def _turn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[IO[str], IO[str]] | None]:
    """Tests are in one room, and whoever waits to have it to itself keeps the door."""
    if not IS_WORKER:
        yield None
        return
    folder = shared_folder(tmp_path_factory)
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        flock(door, LOCK_EX)
        flock(room, LOCK_SH)
        flock(door, LOCK_UN)
        yield door, room


@pytest.fixture
def alone(_turn: tuple[IO[str], IO[str]] | None) -> None:
    """For a test that measures time or fills a GPU: no other test runs meanwhile."""
    if _turn:
        door, room = _turn
        flock(room, LOCK_UN)
        flock(door, LOCK_EX)
        flock(room, LOCK_EX)
        flock(door, LOCK_UN)


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run of pytest see."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if IS_WORKER else folder


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """The result of make(folder), which must survive JSON. One process of pytest makes it, in a folder that all of
    them see; the others wait for it. If it fails, each process tries."""
    place = shared_folder(tmp_path_factory) / name
    place.mkdir(exist_ok=True)
    result = place / "result.json"
    with (place / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not result.exists():
            made = make(Path(tempfile.mkdtemp(dir=place)))
            result.write_text(json.dumps(made))
        return json.loads(result.read_text())
