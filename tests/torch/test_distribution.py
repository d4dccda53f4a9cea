"""PyTorch: a model on two ranks, each a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.running import PROGRAMS, environment

WAYS = ["ddp", "ddp-compiled", "fsdp", "fsdp-bfloat16", "fsdp-compiled", "fsdp-adamw"]


@pytest.mark.slow
def test_two_ranks(torch_backend, tmp_path):
    """On the CPU with gloo, on two GPUs with NCCL."""
    if torch_backend.device == "cuda" and torch_backend.gpus() < 2:
        pytest.skip("GPU: only one")
    # Neither the network's name of this machine nor multicast over NVLink is there everywhere.
    variables = environment(torch_backend.device, GLOO_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0")
    logs = [tmp_path / f"{rank}.log" for rank in (0, 1)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            arguments = [torch_backend.device, str(rank), tmp_path / "store"]
            with log.open("w") as output:
                command = [sys.executable, PROGRAMS / "torch_distribution.py", *arguments]
                ranks.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables))
        codes = [process.wait(timeout=400) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for code, log in zip(codes, logs, strict=True):
        assert code == 0, log.read_text()
        assert [line for line in log.read_text().splitlines() if line in WAYS] == WAYS
