"""PyTorch: DTensors in operators, functions, layers and models, over processes: tests/programs/torch_dtensor.py."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.helpers.running import ROOT, blocks, check_ranks, environment, python, run_program

TWO = (
    *("operators", "functions", "models", "checkpoints", "compiled", "absent_inputs", "losses", "autocast", "dropout"),
    *("without_weight", "plans", "report", "errors"),
)
RANKS = {"two": (2, TWO), "four": (4, ("dropout", "heads", "two_dimensions", "without_weight", "checkpoints"))}
# The version of transformers for Python 3.10 sets other forwards by its plans.
if sys.version_info >= (3, 11) and find_spec("transformers"):
    RANKS |= {"two-families": (2, ("transformers", "transformers_checkpoints", "replicas"))}
    RANKS |= {"four-families": (4, ("transformers_fsdp",))}
PRINTED = (
    "torch.Size([2, 4, 16])",
    "torch.Size([16, 16])",
    "torch.Size([2, 8, 4, 16])",
)  # by the programs of docs/distributed.md


@pytest.mark.slow
@pytest.mark.parametrize(("world", "sections"), RANKS.values(), ids=RANKS.keys())
def test_ranks(torch_backend, tmp_path, world, sections):
    """On the CPU with gloo, on GPUs with NCCL."""
    check_ranks("torch_dtensor.py", torch_backend, world, sections, tmp_path)


def test_functions_on_a_mesh_of_two_dimensions(torch_cpu):
    """All ranks are simulated in one process, by torch's LocalTensorMode."""
    if tuple(map(int, torch_cpu.torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("PyTorch: LocalTensorMode of this version does not compare sizes that differ")
    done = run_program("torch_dtensor.py", "functions", "cpu", "0", "4", "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "functions"


@pytest.mark.slow
def test_guide(torch_backend, tmp_path):
    """The programs of docs/distributed.md, as it says to run them."""
    if torch_backend.device == "cuda" and torch_backend.gpus() < 2:
        pytest.skip("GPU: too few")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = environment(torch_backend.device, GLOO_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0")
    started = []
    for number, program in enumerate(blocks("python", (ROOT / "docs/distributed.md").read_text())):
        (tmp_path / f"{number}.py").write_text(program)
        command = [*torchrun, f"{number}.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=variables, **pipes))
    try:
        for process, printed in zip(started, PRINTED, strict=True):
            log, _ = process.communicate(timeout=300)
            assert process.returncode == 0, log
            assert all(f"rank {rank}: {printed}" in log for rank in (0, 1)), log
    finally:
        for process in started:
            process.kill()


# Runs in one process, after imports in the given order.
ALONE = """
import sys
{imports}
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
import fusedops.torch as fo

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.init_device_mesh("cpu", (1,))
x, weight = (DTensor.from_local(torch.ones(n), mesh, [Replicate()]) for n in ((2, 3), (3,)))
layer = fo.nn.RMSNorm(3)
layer.weight = torch.nn.Parameter(weight)
assert layer(x).shape == x.shape
print(layer.why_not(x))
try:
    print(type(fo.rms_norm(x, weight)).__name__)
except TypeError as error:
    print(error)
"""


BEFORE = """
import importlib.util, torch, fusedops.torch
importlib.util.find_spec('torch.distributed.tensor')
assert 'torch.distributed.tensor' not in sys.modules
"""


@pytest.mark.parametrize("imports", [BEFORE, "import torch.distributed.tensor"], ids=["before", "behind"])
def test_order_of_imports(torch_cpu, imports):
    """Strategies are registered after any order of imports. fusedops imports no DTensors itself."""
    done = python(ALONE.format(imports=imports), GLOO_SOCKET_IFNAME="lo")
    assert done.stdout.split() == ["None", "DTensor"], done.stderr


def test_another_version_of_pytorch(torch_cpu):
    """Without the functions that register strategies, layers leave DTensors to torch, and functions refuse them."""
    imports = "import torch; sys.modules['fusedops.torch.distributed.strategies'] = None"
    done = python(ALONE.format(imports=imports), GLOO_SOCKET_IFNAME="lo")
    expected = "fusedops.rms_norm: x must be a torch.Tensor, or of a class that runs fused operators; got DTensor"
    assert done.stdout.splitlines() == ["the input is a DTensor", f"{expected}: pass x.full_tensor()"], done.stderr
