"""Several processes of pytest at once, which pytest-xdist starts: how many, and which tests none may disturb."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator

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
def _turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that is marked `alone` waits for the others that are under way, and those that come later wait for it."""
    if not IS_WORKER:
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent  # of all workers of this run
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
