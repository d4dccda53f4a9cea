"""NVRTC's locations and the kernel headers, which the core needs to compile programs for GPUs."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from fusedops import cache
from fusedops.sources import folder

_HEADERS = (
    *("core/common/element.h", "core/common/exp.h", "core/common/formulas.h"),
    *("core/program/arguments.h", "core/program/functions.h", "core/program/integers.h"),
    "core/program/nvrtc_std.h",
    *("core/program/prelude.cuh", "core/program/kernel.cuh"),
)
_STANDARD = ("bit", "cmath", "cstdint", "type_traits")  # headers that NVRTC lacks


class _Text(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("text", ctypes.c_char_p))


def use(library: ctypes.CDLL) -> None:
    """Passes them to the core in this library."""
    core = folder("core_cuda") / "core_cuda"
    headers = [(name, (core / name).read_bytes()) for name in _HEADERS]
    headers += [(name, b'#include "core/program/nvrtc_std.h"\n') for name in _STANDARD]
    libraries = [os.fsencode(path) for path in _libraries()]
    texts = [_Text(name.encode(), text) for name, text in headers]
    library.fusedops_use_compiler.restype = None
    library.fusedops_use_compiler(
        (ctypes.c_char_p * max(1, len(libraries)))(*libraries),
        ctypes.c_int32(len(libraries)),
        (_Text * len(texts))(*texts),
        ctypes.c_int32(len(texts)),
        os.fsencode(_cache()) if libraries else b"",
    )


def _cache() -> str:
    """The folder of compiled kernels; empty if there is no safe one."""
    folder = cache.folder()
    if folder is None:
        return ""
    try:
        cache.create(folder)
    except OSError:
        return ""
    refused = cache.fault(folder)
    if refused is None:
        return str(folder)
    warnings.warn(f"fusedops: kernels are compiled again by every process: {refused}", stacklevel=2)
    return ""


def _libraries() -> Iterator[Path]:
    """Every copy of NVRTC: in NVIDIA's packages, which the frameworks require, and in CUDA toolkits."""
    for place in sys.path:
        yield from sorted(Path(place, "nvidia").glob("*/lib/libnvrtc.so.*"))
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")):
        for name in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            yield from sorted(Path(home, name).glob("libnvrtc.so.*"))
