"""Runs a page and writes it as Markdown: its text, its code, and the output of the code. `make docs` runs it.

A page is a Python file in cells, the format of editors and Jupyter: `# %%` begins code, `# %% [markdown]` begins text
in comments. The code runs in the folder of the result, and saves pictures there. Nothing is written if a cell fails.

python docs/build.py [PAGE] [--out FOLDER]    other arguments, such as --quick, are the page's: it reads sys.argv
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, TextIO

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent))  # benchmarks, and the in-place build where fusedops is not installed


class Copy(io.StringIO):
    """Keeps what is printed, and prints it at once."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self.terminal = terminal

    def write(self, text: str) -> int:
        self.terminal.write(text)
        self.terminal.flush()
        return super().write(text)


def built(page: Path) -> str:
    """The page as Markdown, after its cells have run in order, in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    cells = list(re.finditer(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", page.read_text(), re.M | re.S))
    for number, cell in enumerate(cells, 1):
        source = cell[2].strip("\n")
        if cell[1]:
            parts.append(re.sub(r"^# ?", "", source, flags=re.M))
            continue
        print(f"[{number}/{len(cells)}] {source.partition(chr(10))[0]}", flush=True)
        start = time.perf_counter()
        parts.append(f"```python\n{source}\n```")
        lines_before = cell.string.count("\n", 0, cell.start(2))
        with contextlib.redirect_stdout(Copy(sys.stdout)) as output:  # the empty lines keep line numbers in tracebacks
            exec(compile("\n" * lines_before + source, str(page), "exec"), namespace)
        if output.getvalue().strip():
            parts.append(f"```text\n{output.getvalue().rstrip()}\n```")
        print(f"    {time.perf_counter() - start:.0f} s", flush=True)
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, nargs="?", default=DOCS / "keras_page.py")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder to write to [%(default)s]")
    options, rest = parser.parse_known_args()
    page = options.page.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(options.out)
    sys.argv = [str(page), *rest]
    target = Path(page.stem.removesuffix("_page") + ".md")
    target.write_text(built(page))
    print(f"written to {target.resolve()}")


if __name__ == "__main__":
    main()
