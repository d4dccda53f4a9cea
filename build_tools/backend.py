"""setuptools' build backend, which also requires CUTLASS if CUDA kernels are compiled."""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

from fusedops.building import cuda
from fusedops.building.ahead import find_frameworks
from fusedops.building.core import Cuda
from fusedops.building.environment import show_site_packages
from fusedops.building.options import BuildError, Options


def _cutlass() -> list[str]:
    # Required only if needed and missing: only the wheel's headers are used, but its dependencies are heavy.
    show_site_packages()
    try:
        find_frameworks([])  # raises before pip downloads the requirements
        Cuda.find(Options.from_environment(), cuda.gpus_here)
    except cuda.NoCutlassError:
        return [cuda.CUTLASS]
    except cuda.NoCudaError:
        return []
    except BuildError as error:
        raise SystemExit(f"fusedops: {error}") from None
    return []


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*_cutlass(), *build_meta.get_requires_for_build_wheel(config_settings)]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*_cutlass(), *build_meta.get_requires_for_build_editable(config_settings)]
