"""fo.load: the guide's operator, compiled outside of the repository, behaves like any other. Each test runs in its own
process, since a loaded operator stays."""

from __future__ import annotations

import json

import pytest

from fusedops.building import library as building
from tests.conftest import require
from tests.helpers.custom_operators import need_compiler, shared_cache, write_guide
from tests.helpers.frameworks import BOTH
from tests.helpers.running import run_program


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return shared_cache(tmp_path_factory)


def check(program, cache, tmp_path, device, *arguments, **variables):
    need_compiler(device)
    variables |= {"FUSEDOPS_CACHE_DIR": str(cache), "PYTHONWARNINGS": "ignore"}
    if device == "cpu":
        variables["CUDA"] = "0"  # kernels take long to compile
    done = run_program(program, tmp_path, device, *arguments, device=device, **variables)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())


@pytest.mark.parametrize("autograd", ["cpp", pytest.param("python", marks=pytest.mark.slow)])
def test_in_torch(device, cache, tmp_path, autograd):
    require("torch", device)
    check("custom_torch.py", cache, tmp_path, device, FUSEDOPS_TORCH_AUTOGRAD=autograd)


def test_in_tensorflow(device, cache, tmp_path):
    require("tf", device)
    check("custom_tf.py", cache, tmp_path, device)


def test_in_jax(device, cache, tmp_path):
    require("jax", device)
    check("own_jax.py", cache, tmp_path, device)


@pytest.mark.parametrize("framework", BOTH)
def test_mistakes_of_an_author(cache, tmp_path, framework):
    """Mistakes end in an error message or have no effect, and never end the process."""
    require(framework, "cpu")
    check("custom_mistakes.py", cache, tmp_path, "cpu", framework)


@pytest.mark.slow
def test_the_kernels_of_the_guide_compile(cache, tmp_path, monkeypatch):
    """Compiled also without a GPU."""
    need_compiler("cuda")
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(cache))
    monkeypatch.setenv("FUSEDOPS_CUDA_ARCHS", "9.0")
    sources = write_guide(tmp_path)
    for cuda in ("1", "0"):
        monkeypatch.setenv("CUDA", cuda)
        with building.compiled(building.read(sources)) as file:
            assert (b".nv_fatbin" in file.read_bytes()) == (cuda == "1")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["torch", "tf"])
def test_both_frameworks_give_the_same_bits(device, cache, tmp_path, first):
    require("torch", device), require("tf", device)
    check("custom_both.py", cache, tmp_path, device, first)
