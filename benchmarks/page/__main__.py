"""Writes docs/benchmarks.md with its pictures, from the runs in docs/benchmarks/. Nothing is measured.

python -m benchmarks.page                                   writes the page
python -m benchmarks.page h200=build/bench/results.json     first replaces the run h200 by this one, trimmed

Names of runs are arbitrary: the heading and the order of machines follow from the runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.page.summary import trimmed, write
from benchmarks.page.text import FOLDER, page

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=_named, metavar="NAME=FILE", help="a file written by make bench")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER", help="where to write [docs]")
    options = parser.parse_args()
    folder = options.out / FOLDER
    for name, path in options.runs:
        if not path.is_file():
            parser.error(f"there is no {path}")
        write(trimmed(json.loads(path.read_text())), folder / f"{name}.json")
    (options.out / "benchmarks.md").write_text(page(folder))
    print(f"Written to {options.out / 'benchmarks.md'}")


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, Path(path)


if __name__ == "__main__":
    main()
