"""A call of rms_norm runs through the files that docs/architecture.md lists."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

import fusedops
from tests.helpers.running import ROOT
from tests.helpers.torch_functions import autograd_in_cpp

SECTION = (ROOT / "docs" / "architecture.md").read_text().split("### `rms_norm`, file by file\n")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| (both|PyTorch|TensorFlow|GPU) \| `([\w/.]+)` \| (.+) \|$", SECTION, re.M)
COUNTS = re.findall(r"^\| (PyTorch|TensorFlow) \| (\d+) \| (\d+) \|$", SECTION, re.M)
TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
# Generated functions, and the files that generate them.
GENERATED = {
    "<fusedops.torch: rms_norm>": "fusedops/torch/calls.py",
    "<fusedops.tf.rms_norm>": "fusedops/tf/calls.py",
    "<fusedops.tf.gradient_of_rms_norm>": "fusedops/tf/steps.py",
}
MAX_FILES = 14
FRESH_EPS = (0.01 + i / 1000 for i in itertools.count())  # values that no other call in the process has


def files(*kinds):
    return [file for kind, file, _ in ROWS if kind in kinds]


@pytest.mark.parametrize(("file", "text"), [row[1:] for row in ROWS], ids=files("both", "PyTorch", "TensorFlow", "GPU"))
def test_each_file_has_the_names_of_its_entry(file, text):
    package = Path(fusedops.__file__).parents[1]
    source = ((package if file.startswith("fusedops/") else ROOT) / file).read_text()
    for name in re.findall(r"`([\w:]+)(?:\(\))?`", text):
        assert re.search(rf"\b{name}\b", source), name


def test_the_counts_are_those_of_the_table():
    assert [title for title, _, _ in COUNTS] == list(TITLES.values())
    for title, on_cpu, on_gpu in COUNTS:
        assert (int(on_cpu), int(on_gpu)) == (len(files("both", title)), len(files("both", title, "GPU")))
        assert max(int(on_cpu), int(on_gpu)) <= MAX_FILES


def test_python_runs_in_the_files_of_the_table(any_backend):
    """In the first call with these attributes, and its backward."""
    framework = any_backend.framework
    if framework == "torch" and not autograd_in_cpp():
        pytest.skip("autograd is in Python")
    package, seen = Path(fusedops.__file__).parents[1], set()
    x, eps = any_backend.tensor([[1.0, 2.0], [3.0, 4.0]], "float32"), next(FRESH_EPS)

    def note(frame, event, argument):
        if event == "call":
            seen.add(frame.f_code.co_filename)

    def profiled(function):
        sys.setprofile(note)
        try:
            return function()
        finally:
            sys.setprofile(None)

    def call():
        return any_backend.functions.rms_norm(x, eps=eps)

    if framework == "torch":
        x.requires_grad_()
        profiled(lambda: call().sum().backward())
    else:
        with any_backend.tf.GradientTape() as tape:
            tape.watch(x)
            y = profiled(call)
        profiled(lambda: tape.gradient(y, x))
    inside = [Path(file) for file in seen if package / "fusedops" in Path(file).parents]
    ran = {GENERATED[file] for file in seen if file.startswith("<fusedops")}
    ran |= {str(file.relative_to(package)) for file in inside}
    assert ran == {file for file in files("both", TITLES[framework]) if file.endswith(".py")}
