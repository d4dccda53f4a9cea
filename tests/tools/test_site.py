"""The documentation site: its links lead to pages, headings and files, and its menu has every page."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers.frameworks import BOTH, installed
from tests.helpers.running import ROOT
from tests.tools.test_guides import anchors_of


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    if not all(map(installed, BOTH)):
        pytest.skip("the reference describes both frameworks")
    pytest.importorskip("matplotlib")
    from build_tools import site

    return site.pages()


def test_links(pages):
    from build_tools import site

    blob = site.address("Repository") + "/blob/main/"
    count = 0
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            path, _, heading = target.partition("#")
            if target.startswith(blob):
                assert (ROOT / path.removeprefix(blob)).exists(), f"{name}: {target}"
            elif not target.startswith("https://"):
                other = os.path.normpath(Path(name).parent / path) if path else name
                assert other in pages or (ROOT / "docs" / other).is_file(), f"{name}: {target}"
                assert not heading or heading in anchors_of(pages[other]), f"{name}: {target}"
            count += 1
    assert count > 300


def test_the_index_links_to_the_reference(pages):
    assert "[`fo.rms_norm`](reference/normalization.md#rms_norm)" in pages["api.md"]
    assert "../fusedops/" not in pages["api.md"]


def test_the_menu_has_every_page(pages):
    from build_tools import site

    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        return [leaf for each in (entry.values() if isinstance(entry, dict) else entry) for leaf in leaves(each)]

    assert sorted(leaves(site.navigation(pages))) == sorted(pages)


def test_marks_of_figures_are_left_out(pages):
    assert not [name for name, text in pages.items() if re.search("^<!-- (figures|end of figures)", text, re.M)]
    assert "| `rms_norm` |" in pages["performance.md"]
