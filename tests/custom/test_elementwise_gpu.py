"""Expressions on a GPU: the cache of compiled kernels, and kernels compiled during a graph capture."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.running import environment, python

# One kernel forward, and one backward. Prints the sum of the results' bits.
PROGRAM = """
import torch, fusedops.torch as fo
x = torch.linspace(-2, 2, 4096, device="cuda").reshape(4, 1024).requires_grad_()
y = fo.elementwise("tanh(x) * mean(x * x)", name="kept")(x)
y.sum().backward()
print(y.view(torch.int32).sum().item(), x.grad.view(torch.int32).sum().item())
"""


class Runs:
    """Runs the program in separate processes, and lists the files that they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, **variables: str) -> subprocess.Popen[str]:
        given = {"FUSEDOPS_CACHE_DIR": str(self.folder), **variables}
        process = {name: value for name, value in environment("cuda", **given).items() if value != "-"}
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.Popen(command, env=process, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, **variables: str) -> str:
        return self.end(self.start(**variables))

    def end(self, process: subprocess.Popen[str]) -> str:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        return out

    def files(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in sorted(self.folder.iterdir())}


@pytest.fixture
def runs(torch_gpu, tmp_path) -> Runs:
    return Runs(tmp_path / "a cache" / "of kernels")


@pytest.mark.slow
def test_kernels_are_cached_and_found(runs):
    expected = runs.run()
    kept = runs.files()
    assert len(kept) == 2
    assert all(name.endswith(".cubin") for name in kept)
    times = {file: file.stat().st_mtime_ns for file in runs.folder.iterdir()}
    assert runs.run() == expected
    assert times == {file: file.stat().st_mtime_ns for file in runs.folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"something else\n",
        lambda content: content[:-9] + bytes(9),
        lambda content: content.replace(b"fusedops kernel 1", b"fusedops kernel 0"),
    ],
    ids=["truncated", "empty", "foreign", "changed", "old"],
)
def test_a_damaged_file_is_compiled_again(runs, damage):
    expected = runs.run()
    kept = runs.files()
    for name, content in kept.items():
        (runs.folder / name).write_bytes(damage(content))
    assert runs.run() == expected
    assert runs.files() == kept


@pytest.mark.slow
def test_files_writable_by_others_are_not_loaded(runs):
    """A file is compiled again and replaced; a folder is neither read nor written."""
    expected = runs.run()
    assert stat.S_IMODE(runs.folder.stat().st_mode) == 0o700
    before = {file: file.stat().st_ino for file in runs.folder.iterdir()}
    for file in before:
        file.chmod(0o602)
    assert runs.run() == expected
    assert all(file.stat().st_ino != node for file, node in before.items())
    assert {stat.S_IMODE(file.stat().st_mode) for file in before} == {0o600}
    for file in before:
        file.unlink()
    runs.folder.chmod(0o702)
    process = runs.start()
    out, error = process.communicate(timeout=300)
    assert out == expected
    assert f"kernels are compiled again by every process: {runs.folder} must be writable by its owner alone" in error
    assert runs.files() == {}


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(runs):
    expected = runs.run()
    file = runs.folder / "file"
    file.touch()
    # Not even root can create files in /proc, which exists and belongs to root.
    for folder in (file, file / "below", "/proc", "/proc/nowhere"):
        assert runs.run(FUSEDOPS_CACHE_DIR=str(folder)) == expected
    assert runs.run(FUSEDOPS_CACHE_DIR="", XDG_CACHE_HOME="", HOME="-") == expected


@pytest.mark.slow
def test_the_default_folder_of_kernels(runs, tmp_path):
    runs.run(FUSEDOPS_CACHE_DIR="", XDG_CACHE_HOME="", HOME=str(tmp_path / "home"))
    assert len(list((tmp_path / "home/.cache/fusedops").iterdir())) == 2
    runs.run(FUSEDOPS_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert len(list((tmp_path / "xdg/fusedops").iterdir())) == 2


@pytest.mark.slow
def test_two_processes_at_once(runs):
    processes = [runs.start() for _ in range(3)]
    assert len({runs.end(process) for process in processes}) == 1
    assert len(runs.files()) == 2  # no temporary files are left


def test_a_graph_that_compiles(torch_gpu, random):
    """Captured without a prior call: the kernel is compiled during the capture, and the graph replays it."""
    torch = torch_gpu.torch
    f = torch_gpu.functions.elementwise("x * 1.2345 + sum(x) * y", name="captured")
    x, y = (torch_gpu.tensor(random.normal(size=(65, 130)), "float32") for _ in range(2))
    for kernel in ("cold", "warm"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            z = f(x, y)
        x.add_(1)
        graph.replay()
        assert torch.equal(z, f(x, y)), kernel


def test_backward_alone_in_its_thread(torch_gpu):
    """Autograd's thread has no CUDA context yet, which the driver's launch needs."""
    code = """
import torch, fusedops.torch as fo
x = torch.ones(1000, device="cuda", requires_grad=True)
fo.elementwise("x * x * 1.5", name="alone")(x).backward(torch.ones(1000, device="cuda"))
print(x.grad.sum().item())
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 3000


def test_the_second_gpu(torch_gpu, random):
    """The kernel is loaded for each GPU, whichever is current."""
    torch = torch_gpu.torch
    if torch.cuda.device_count() < 2:
        pytest.skip("GPU: one only")
    f = torch_gpu.functions.elementwise("softplus(x) * 0.75", name="second")
    x = torch_gpu.tensor(random.normal(size=(33, 130)), "float32")
    first, second = f(x), f(x.to("cuda:1"))
    assert second.device.index == 1
    assert torch.equal(first, second.to("cuda:0"))


def test_tensors_of_two_frameworks(torch_gpu, tf_gpu, random):
    """Each binding compiles separately, and both find the other's kernels on disk: the same bits."""
    values = random.normal(size=(70, 300))
    found = []
    for backend in (torch_gpu, tf_gpu):
        f = backend.functions.elementwise("x * sigmoid(x) / (1 + mean(abs(x)))", name="both")
        with backend.place:
            found.append(backend.to_numpy(f(backend.tensor(values, "bfloat16"))))
    np.testing.assert_array_equal(found[0].view(np.uint16), found[1].view(np.uint16))
