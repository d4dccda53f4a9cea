"""Operators seen from outside: their names in profilers, and NVTX ranges on request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusedops.loading import FRAMEWORKS
from tests.helpers.running import ROOT, compiled
from tests.helpers.torch_functions import autograd_in_cpp


def class_name(operator: str) -> str:
    return "Fusedops" + "".join(part.capitalize() for part in operator.split("_"))


def test_names_of_autograd_nodes(torch_backend, spec, random):
    sample = spec.sample((3, 4), random)
    inputs = torch_backend.leaves(torch_backend.tensors(sample, "float32"), spec.differentiable(sample))
    for output in torch_backend.call(spec.name, inputs, sample.options):
        assert output.grad_fn.name() == f"{class_name(spec.operator)}Backward"


@pytest.mark.parametrize("way", ["autograd", "torch.func"])
def test_the_profiler_of_torch_names_operators(torch_backend, way):
    torch, fo = torch_backend.torch, torch_backend.functions
    x = torch.ones(2, 3, device=torch_backend.device, requires_grad=way == "autograd")
    with torch.profiler.profile() as profile:
        if way == "autograd":
            fo.rms_norm(x).sum().backward()
        else:
            torch.func.grad(lambda x: fo.rms_norm(x).sum())(x)
    kernel = "fusedops::rms_norm"
    in_python = set() if autograd_in_cpp() else {"FusedopsRmsNorm"}
    assert {"FusedopsRmsNormBackward", kernel, f"{kernel}_backward", *in_python} <= {
        event.key for event in profile.key_averages()
    }


def test_the_profiler_of_tensorflow_names_operators(tf_backend, tmp_path):
    tf, fo = tf_backend.tf, tf_backend.functions
    with tf.profiler.experimental.Profile(str(tmp_path)):
        fo.rms_norm(tf.ones([2, 3]))
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"FusedopsRmsNorm" in trace.read_bytes()


OF_TORCH = """
import torch, fusedops.torch as fo
x = torch.ones(2, 3, device="{device}", requires_grad=True)
fo.rms_norm(x).backward(x.detach())
fo.axpby(2.0, x, x)
torch.compile(fo.relu, fullgraph=True, backend="aot_eager")(x)
"""
OF_TENSORFLOW = """
import tensorflow as tf, fusedops.tf as fo
with tf.device("{device}"):
    x = tf.ones([2, 3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = fo.rms_norm(x)
    tape.gradient(y, x)
    fo.axpby(2.0, x, x)
    tf.function(fo.relu, jit_compile=True)(x)
"""
RANGES = [
    f"{line}\n"
    for name in ("rms_norm", "rms_norm_backward", "axpby", "relu")
    for line in (f"fusedops.{name} [2, 3]", "end")
]


@pytest.fixture(scope="module")
def nvtx_log(tmp_path_factory) -> Path:
    """A library that writes the NVTX ranges to $NVTX_LOG."""
    library = tmp_path_factory.mktemp("nvtx") / "libnvtx_log.so"
    return compiled(ROOT / "tests/helpers/nvtx_log.cpp", library, "-shared", "-fPIC")


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.slow
@pytest.mark.parametrize("is_requested", [True, False])
def test_nvtx_ranges_appear_on_request(any_backend, is_requested, nvtx_log, tmp_path):
    """Ranges appear only on request; "0" is the same as unset."""
    build = FRAMEWORKS[any_backend.framework].build()
    if not build["cuda"]:
        pytest.skip("NVTX ranges: this build has no CUDA")
    program, device = {
        "torch": (OF_TORCH, any_backend.device),
        "tf": (OF_TENSORFLOW, "CPU" if any_backend.device == "cpu" else "GPU"),
    }[any_backend.framework]
    log = tmp_path / "ranges"
    log.touch()
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(nvtx_log), "NVTX_LOG": str(log)}
    environment.pop("FUSEDOPS_NVTX", None)
    if is_requested or any_backend.framework == "tf":
        environment["FUSEDOPS_NVTX"] = str(int(is_requested))
    done = subprocess.run(
        [sys.executable, "-c", program.format(device=device)], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    ranges = log.read_text().splitlines(keepends=True)
    assert ranges == (RANGES if is_requested else [])
