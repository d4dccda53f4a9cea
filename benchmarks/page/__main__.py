"""Writes the figures of the documents, and their charts, from the runs in docs/benchmarks/. Nothing is measured.

python -m benchmarks.page                                   writes blocks and charts anew
python -m benchmarks.page h100=build/bench/results.json     first adds a run, trimmed, in place of the last h100
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.page.blocks import FOLDER, ROOT, Results, documents, draw_speed, renewed
from benchmarks.page.pictures import draw_all
from benchmarks.page.summary import trimmed, write


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=_named, metavar="NAME=FILE", help="results of make bench")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the checkout to write [this one]")
    options = parser.parse_args()
    folder = options.root / FOLDER
    for name, path in options.runs:
        if not path.is_file():
            parser.error(f"there is no {path}")
        write(trimmed(json.loads(path.read_text())), folder / f"{name}.json")
    results = Results(options.root)
    for name, runs in results.machines.items():
        draw_all(name, runs, folder)
    draw_speed(results)
    for path in documents(options.root):
        path.write_text(renewed(path, results))
    print(f"Written to {options.root}")


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


if __name__ == "__main__":
    main()
