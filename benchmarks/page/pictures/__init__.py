"""The page's pictures, one module each, drawn from the runs alone.

`draw(runs, path)` writes a PNG, or returns a phrase that says which data the runs lack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.page.pictures import calls, floor, gpus, growth, roofline
from benchmarks.results.schema import Run

Draw = Callable[[Sequence[Run], Path], str | None]

# Name of the file -> (alternative text, draw function).
PICTURES: dict[str, tuple[str, Draw]] = {
    "floor": ("Fraction of the floor that each operator reaches, beside its baselines", floor.draw),
    "roofline": ("Rooflines: arithmetic per second against arithmetic per byte", roofline.draw),
    "growth": ("Time against the number of elements, of rows, and the length of a row", growth.draw),
    "gpus": ("Speed of steps on several GPUs, relative to PyTorch's eager mode", gpus.draw),
    "calls": ("Time of a Python call on a few numbers", calls.draw),
}


def picture_name(machine: str, kind: str) -> str:
    return f"{machine}-{kind}.png"


def draw_all(machine: str, runs: Sequence[Run], folder: Path) -> None:
    """Draws the charts of one machine. A chart whose entries the runs lack is removed."""
    for kind, (_, draw) in PICTURES.items():
        path = folder / picture_name(machine, kind)
        if draw(runs, path):
            path.unlink(missing_ok=True)
