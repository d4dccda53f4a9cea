"""Executed pages: `make docs`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.running import ROOT, blocks, run, skip_without

BUILD = ROOT / "docs" / "build.py"
PAGE = ROOT / "docs" / "keras_page.py"
OWN_PATHS = {str(ROOT), sys.prefix, sys.base_prefix, "site-packages"}

SMALL_PAGE = """# %% [markdown]
# # A title
#
# Some *text*.

# %%
import sys
from pathlib import Path


def twice(x):

    return 2 * x


# %% [markdown]
# More.

# %%
print(twice(21), sys.argv[1:])
Path("picture.txt").write_text("drawn")
"""
MARKDOWN = """# A title

Some *text*.

```python
import sys
from pathlib import Path


def twice(x):

    return 2 * x
```

More.

```python
print(twice(21), sys.argv[1:])
Path("picture.txt").write_text("drawn")
```

```text
42 ['--quick']
```
"""


def build(page: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(str(BUILD), str(page), "--out", str(out), *arguments, cwd=ROOT)


def code_cells() -> list[str]:
    cells = re.split(r"^# %%", PAGE.read_text(), flags=re.M)
    return [cell.strip() for cell in cells if cell and not cell.startswith(" [markdown]")]


def test_a_page(tmp_path):
    page, out = tmp_path / "small_page.py", tmp_path / "a folder"
    page.write_text(SMALL_PAGE)
    done = build(page, out, "--quick")
    assert done.returncode == 0, done.stderr
    assert (out / "small.md").read_text() == MARKDOWN
    assert (out / "picture.txt").read_text() == "drawn"
    assert "[2/4] import sys" in done.stdout and "42 ['--quick']" in done.stdout


def test_a_cell_that_fails_fails_the_build(tmp_path):
    page = tmp_path / "failing.py"
    page.write_text("# %%\nprint('begun')\n\n# %%\nx = 0\n1 / x\n")
    done = build(page, tmp_path)
    assert done.returncode == 1
    assert "begun" in done.stdout
    assert f'"{page}", line 6' in done.stderr
    assert "    1 / x\n" in done.stderr
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert not (tmp_path / "failing.md").exists()


@pytest.mark.slow
def test_the_page_of_keras(tmp_path):
    skip_without(("tensorflow", "keras", "matplotlib"))
    done = build(PAGE, tmp_path, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning:" not in done.stderr and "WARNING:tensorflow" not in done.stderr
    page = (tmp_path / "keras.md").read_text()

    assert blocks("python", page) == code_cells()
    printed = blocks("text", page)
    assert len(printed) == sum("print(" in cell or "train(" in cell for cell in code_cells())
    text = "\n".join(printed)
    models = 2 if importlib.util.find_spec("keras_hub") else 1
    for pattern, times in {
        r"^fusedops [\d.]+, TensorFlow [\d.]+, Keras [\d.]+, Python [\d.]+$": 1,
        r"^loss, epoch by epoch: ": 2,
        r"^fusedops: \d+ of \d+ layers of '\w+' replaced(, \d+ more on a condition)?, \d+ that are no layers$": models,
        r"^error of the logits: \S+ before, \S+ after$": models,
        **{rf"^{mode} +[\d.]+ -> +[\d.]+ ms, +[\d.]+ times": models for mode in ("eager", "graph", "XLA")},
    }.items():
        assert len(re.findall(pattern, text, re.M)) == times, pattern
    assert ("GiB" in text) != ("TensorFlow counts no memory on a CPU." in text)
    losses = [float(loss) for line in re.findall("^loss.*: (.*)$", text, re.M) for loss in line.split(", ")]
    assert losses == sorted(losses, reverse=True)  # across the conversion

    assert not [path for path in (*OWN_PATHS, str(tmp_path)) if path in page]
    assert not re.findall("warning|^[IWE]0000", text, re.M | re.I)
    pictures = re.findall(r"!\[.*\]\((.*)\)", page)
    assert pictures == ["keras.png"]
    assert (tmp_path / "keras.png").read_bytes().startswith(b"\x89PNG")


def test_the_built_page_matches_the_code():
    built = PAGE.with_name("keras.md")
    if not built.exists():
        pytest.skip("docs/keras.md is not built: make docs")
    assert blocks("python", built.read_text()) == code_cells()
