"""python -m tests.index: writes the table of all test files, the last section of docs/testing.md, from their
docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "testing.md"
HEADING = "## All test files\n"


def sentence(file: Path) -> str:
    """The first paragraph of the file's docstring, in one line."""
    text = ast.get_docstring(ast.parse(file.read_text()))
    assert text, f"{file} needs a docstring: it is the file's entry in {PAGE.name}"
    return " ".join(text.partition("\n\n")[0].split())


def section() -> Iterator[str]:
    yield HEADING
    yield "`python -m tests.index` writes this table from the files' docstrings."
    yield "\n| file | subject |\n| --- | --- |"
    for file in sorted(TESTS.rglob("test_*.py")):
        yield f"| `{file.relative_to(TESTS)}` | {sentence(file).replace('|', chr(92) + '|')} |"


def page() -> str:
    """docs/testing.md with a current table of test files."""
    return PAGE.read_text().partition(HEADING)[0] + "\n".join(section()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
