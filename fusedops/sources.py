"""Where the sources of the core and of the bindings are: in the package, or in a checkout beside it."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
INSTALLED = "_sources"  # where an installed package has them


def folder(*names: str | Path) -> Path:
    """The one that has all folders of these names, as `core_cuda`.

    Raises:
        FileNotFoundError: They are in neither place.
    """
    for place in (PACKAGE / INSTALLED, PACKAGE.parent):
        if all((place / name).is_dir() for name in names):
            return place
    raise FileNotFoundError(
        f"fusedops: the sources are not in {PACKAGE / INSTALLED}. Run: pip install --force-reinstall fusedops"
    )
