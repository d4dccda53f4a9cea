"""The table of all test files in docs/testing.md matches the files."""

from __future__ import annotations

from tests import index


def test_the_table_is_that_of_the_files() -> None:
    assert index.PAGE.read_text() == index.page(), "run: python -m tests.index"
