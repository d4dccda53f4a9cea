"""setuptools' build backend, with one requirement more where there are kernels for the GPU to compile."""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

from build_tools.environment import show_site_packages
from fusedops.building import cuda
from fusedops.building.options import Options


def _cutlass() -> list[str]:
    # Asked for only where it is needed and missing: the wheel has headers to offer, and heavy dependencies.
    show_site_packages()
    try:
        cuda.find_toolkit(Options.from_environment())
    except cuda.NoCudaError:
        return []
    try:
        cuda.find_cutlass()
    except cuda.NoCudaError:
        return [cuda.CUTLASS]
    return []


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_cutlass()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_cutlass()]
