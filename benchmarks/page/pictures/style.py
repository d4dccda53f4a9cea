"""The style of all pictures: each implementation has the same colour and marker everywhere."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks.page.summary import OURS
from benchmarks.results.schema import Run

# Okabe and Ito's palette for colour-blind readers, without its yellow, which is too pale on white. Markers distinguish
# implementations in greyscale.
LOOKS = {
    OURS: ("#0072B2", "o"),
    "eager": ("#E69F00", "s"),
    "compiled": ("#009E73", "^"),
    "Liger": ("#CC79A7", "D"),
    "QuACK": ("#56B4E9", "v"),
    "graph": ("#D55E00", "P"),
    "XLA": ("#000000", "X"),
}
OTHERS = ("#777777", "d")  # references: addcmul, tf.add, the bare operators
GREY = "#555555"
SHOWS = "Shows"  # PNG text field with the digest of the runs

plt.rcParams.update(
    {
        "figure.facecolor": "white",
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": "#DDDDDD",
        "legend.frameon": False,
    }
)


def look(name: str, *, filled: bool = True) -> dict[str, Any]:
    """The look of an implementation. fusedops under a graph or XLA has our colour and the mode's marker, hollow."""
    mode = name.removeprefix(f"{OURS}, ")
    colour, marker = LOOKS.get(name, OTHERS)
    if mode != name:
        colour, marker, filled = LOOKS[OURS][0], LOOKS.get(mode, OTHERS)[1], False
    return {"color": colour, "marker": marker, "markerfacecolor": colour if filled else "white"}


def legend(figure: Any, names: Iterable[str], more: Mapping[str, dict[str, Any]] | None = None) -> None:
    looks = {name: look(name) for name in names} | dict(more or {})
    handles = [Line2D([], [], label=name, **({"linestyle": ""} | options)) for name, options in looks.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(6, len(handles)))


def save(figure: Any, path: Path, runs: Sequence[Run]) -> None:
    """Saves in 256 colours, a third of the size. The file holds a digest of the runs, which reveals a stale picture."""
    picture, text = io.BytesIO(), PngInfo()
    text.add_text(SHOWS, digest(runs))
    figure.savefig(picture, format="png", dpi=100)
    plt.close(figure)
    Image.open(picture).convert("RGB").quantize(256).save(path, optimize=True, pnginfo=text)


def digest(runs: Sequence[Run]) -> str:
    return hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()
