"""PyTorch: programs compiled and packaged by AOTInductor, run in another process."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from fusedops import loading
from tests.helpers.running import run_program
from tests.helpers.torch_functions import every_operator
from tests.specifications import BUILT_IN


@pytest.mark.slow
def test_a_package_of_every_operator(torch_backend, tmp_path, random):
    """Every built-in operator: the package runs if the library is loaded, with eager code's bits; otherwise torch names
    the missing operator."""
    torch = torch_backend.torch
    if not shutil.which("g++"):
        pytest.skip("inductor needs a compiler")
    if " " in torch.__file__:
        pytest.skip("AOTInductor's link command breaks at the space in torch's own path")
    function, leaves = every_operator(torch_backend, random, BUILT_IN)
    inputs = tuple(x.detach() for x in leaves)
    count = _package(torch, function, inputs, tmp_path / "every")

    def run(source):
        return _run(torch_backend.device, tmp_path / "every", source)

    with ThreadPoolExecutor() as threads:
        *good, bad = threads.map(run, ("fusedops.torch", str(loading.library("torch")), "nothing"))
    if any(done.returncode < 0 for done in good):  # a signal; on some machines torch 2.11 crashes with any package
        _package(torch, lambda x: (x + 1,), inputs[:1], tmp_path / "plain")
        if (plain := _run(torch_backend.device, tmp_path / "plain", "nothing")).returncode < 0:
            pytest.skip(f"torch {torch.__version__} dies (signal {-plain.returncode}) of a package of x + 1, too")
    assert [done.returncode for done in good] == [0, 0], "\n".join(done.stderr for done in good)
    assert all(done.stdout.split() == [str(count)] for done in good)
    assert "Could not find schema for fusedops::" in bad.stderr


def _package(torch, function, inputs, folder):
    """Writes the function's package, its inputs and its values to the folder; returns the number of values."""

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    folder.mkdir()
    program = torch.export.export(Module(), inputs)
    # Compiled code is judged by its results, not by its speed.
    options = {"compile_threads": 1, "force_disable_caches": True, "aot_inductor.compile_wrapper_opt_level": "O0"}
    with torch._inductor.config.patch(options):
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "program.pt2"))
    values = function(*inputs)
    torch.save((inputs, values), folder / "values.pt")
    return len(values)


def _run(device, folder, source):
    """Runs the package in a new process, which has the operators from `source`: see torch_package.py."""
    variables = {"PYTHONFAULTHANDLER": "1", "TMPDIR": str(folder)}  # torch's folder for unpacked files
    files = (folder / "program.pt2", folder / "values.pt")
    return run_program("torch_package.py", *files, source, device=device, is_new=True, **variables)
