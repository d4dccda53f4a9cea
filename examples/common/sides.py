"""Finds the installed frameworks, and a device that all of them support."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# PyTorch's threads sleep while they wait for each other. Spinning would make every operator a hundred times slower if
# other programs use the same cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported
# The frameworks share the GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

if importlib.util.find_spec("fusedops") is None:  # not installed: use the in-place build
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


_SIDES = (
    ("in_torch", "TorchSide", "PyTorch"),
    ("in_tf", "TensorFlowSide", "TensorFlow"),
    ("in_jax", "JaxSide", "JAX"),
)


def load() -> tuple[str, list[Any], list[str]]:
    """The device, one side for each installed framework (PyTorch first), and sentences on missing ones.

    The sides are classes of the modules `in_torch`, `in_tf` and `in_jax` of the running example. A missing JAX is no
    sentence: few have all three frameworks.
    """
    classes, missing = [], []
    with _quiet():
        for module, name, title in _SIDES:
            if module == "in_jax" and importlib.util.find_spec("jax") is None:
                continue
            try:
                classes.append(getattr(importlib.import_module(module), name))
            except ImportError as error:
                missing.append(f"{title}: {error}")
        on_gpu = [_on_gpu(side) for side in classes]
    device = "GPU" if on_gpu and all(on_gpu) else "CPU"
    return device, [side(device) for side in classes], missing


def _on_gpu(side: Any) -> bool:
    """True if the framework finds a GPU and its binding has CUDA kernels."""
    from fusedops.loading import FRAMEWORKS

    build = FRAMEWORKS[side.fused.__name__.rpartition(".")[2]].build()
    return side.has_gpu() and build is not None and bool(build["cuda"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides output of C++ code: TensorFlow's libraries write to stderr before they read the settings above."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
