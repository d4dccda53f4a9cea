"""README.md and the guides in docs/: their programs run, and their links lead somewhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.running import ROOT, blocks, python

GUIDES = ("README.md", "docs/layers.md", "docs/converting.md")
PROGRAMS = [
    pytest.param(code, id=f"{guide}-{number}")
    for guide in GUIDES
    for number, code in enumerate(blocks("python", (ROOT / guide).read_text()))
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.slow
@pytest.mark.parametrize("code", PROGRAMS)
def test_program(code, tmp_path):
    for module in re.findall(r"^(?:import|from) (torch|tensorflow|keras|transformers)\b", code, re.M):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    there = f"import os\nos.chdir({str(tmp_path)!r})\n"
    done = python(there + SAVED * ("model.keras" in code) + code)
    assert done.returncode == 0, done.stdout + done.stderr


# What the guide's program loads.
SAVED = """
import keras
import fusedops.tf.keras as fk

keras.Sequential([keras.Input((4,)), fk.LayerNormalization(), fk.Dense(3, activation="gelu")]).save("model.keras")
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        assert not heading or heading in anchors(other), target
