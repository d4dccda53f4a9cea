"""PyTorch: programs that AOTInductor compiles and packages, run where they were not made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch_functions import every_operator

from fusedops import loading


@pytest.mark.slow
def test_a_package_of_every_operator(torch_backend, tmp_path, random):
    """It runs where the library is loaded, with eager code's bits; elsewhere torch says which operator it lacks."""
    torch = torch_backend.torch
    if not shutil.which("g++"):
        pytest.skip("inductor needs a compiler")
    if " " in torch.__file__:
        pytest.skip("AOTInductor's link command breaks at the space in torch's own path")
    function, leaves = every_operator(torch_backend, random)
    inputs = tuple(x.detach() for x in leaves)

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    package, values = tmp_path / "every.pt2", tmp_path / "values.pt"
    program = torch.export.export(Module(), inputs)
    options = {"compile_threads": 1, "force_disable_caches": True}
    with torch._inductor.config.patch(options):
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    expected = function(*inputs)
    torch.save((inputs, expected), values)

    def run(source):
        script = Path(__file__).with_name("torch_package.py")
        command = [sys.executable, "-X", "faulthandler", str(script), str(package), str(values), source]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # where torch leaves what it unpacks
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)

    with ThreadPoolExecutor() as threads:
        *good, bad = threads.map(run, ("fusedops.torch", str(loading.library("torch")), "nothing"))
    assert [done.returncode for done in good] == [0, 0], "\n".join(done.stderr for done in good)
    assert all(done.stdout.split() == [str(len(expected))] for done in good)
    assert "Could not find schema for fusedops::" in bad.stderr
