"""Finds the sources of the core and of the bindings: in the package, or in a checkout around it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
INSTALLED = "_sources"  # their folder in an installed package


def folder(*names: str | Path) -> Path:
    """The folder that contains all folders of these names, such as `core_cuda`.

    Raises:
        FileNotFoundError: They are in neither place.
    """
    for place in (PACKAGE / INSTALLED, PACKAGE.parent):
        if all((place / name).is_dir() for name in names):
            return place
    raise FileNotFoundError(
        f"fusedops: the sources are not in {PACKAGE / INSTALLED}. Run: pip install --force-reinstall fusedops"
    )
