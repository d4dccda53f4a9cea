"""Calls run through the files that docs/architecture.md lists for them."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

import fusedops
from tests.helpers.running import ROOT
from tests.helpers.torch_functions import autograd_in_cpp

PAGE = (ROOT / "docs" / "architecture.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)`, file by file\n(.*?)(?=^##)", PAGE, re.M | re.S))
ROWS = {
    operator: re.findall(r"^\| (both|PyTorch|TensorFlow|CPU|GPU) \| `([\w/.]+)` \| (.+) \|$", section, re.M)
    for operator, section in SECTIONS.items()
}
# The files of all operators are listed for rms_norm alone.
SHARED = [row for row in ROWS["rms_norm"] if not row[1].startswith(("core_cuda/ops/", "fusedops/functions/"))]
ENTRIES = [(operator, file, text) for operator, rows in ROWS.items() for _, file, text in rows]
COUNTS = re.findall(r"^\| (PyTorch|TensorFlow) \| (\d+) \| (\d+) \|$", SECTIONS["rms_norm"], re.M)
TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
# Files of generated functions, by their names in tracebacks.
GENERATED = {
    r"<fusedops\.torch: \w+>": "fusedops/torch/calls.py",
    r"<fusedops\.tf\.gradient_of_\w+>": "fusedops/tf/steps.py",
    r"<fusedops\.tf\.\w+>": "fusedops/tf/calls.py",
}
MAX_FILES = 14
LINES = re.findall(r"^\| (\w+).* \| (\d+) \| (\d*) ?\|$", PAGE[PAGE.index("A framework costs") :], re.M)
BINDINGS = {  # folders of C++, and the package
    "PyTorch": ("torch_binding", "torch_autograd", "fusedops/torch"),
    "TensorFlow": ("tf_binding", "fusedops/tf"),
    "JAX": ("jax_binding", "fusedops/jax"),
    "XLA": ("xla_binding", ""),
}
LAYERS = ("keras.py", "keras_backend.py", "nnx.py", "optim.py")
FRESH = (0.01 + i / 1000 for i in itertools.count())  # attributes that no other call in the process has
VALUES = [[1.0, 2.0], [3.0, 4.0]]
CALLS = {
    "rms_norm": lambda b, x: b.functions.rms_norm(x, eps=next(FRESH)),
    "attention": lambda b, x: b.functions.attention(*[x[None, :, None]] * 3, scale=next(FRESH)),
    "linear_cross_entropy": lambda b, x: b.functions.linear_cross_entropy(
        x, b.tensor(VALUES, "float32"), b.tensor([0, 1], "int64"), softcap=next(FRESH)
    ),
}


def files(operator, *kinds):
    rows = ROWS[operator] + (SHARED if operator != "rms_norm" else [])
    return [file for kind, file, _ in rows if kind in kinds]


@pytest.mark.parametrize(("operator", "file", "text"), ENTRIES, ids=[f"{entry[0]}-{entry[1]}" for entry in ENTRIES])
def test_each_file_has_the_names_of_its_entry(operator, file, text):
    package = Path(fusedops.__file__).parents[1]
    source = ((package if file.startswith("fusedops/") else ROOT) / file).read_text()
    for name in re.findall(r"`([\w:]+)(?:\(\))?`", text):
        assert re.search(rf"\b{name}\b", source), name


def test_the_counts_are_those_of_the_table():
    assert [title for title, _, _ in COUNTS] == list(TITLES.values())
    for title, on_cpu, on_gpu in COUNTS:
        assert (int(on_cpu), int(on_gpu)) == (
            len(files("rms_norm", "both", title)),
            len(files("rms_norm", "both", title, "GPU")),
        )
        assert max(int(on_cpu), int(on_gpu)) <= MAX_FILES


def test_the_lines_of_a_framework_are_about_those_of_the_table():
    def lines(paths):
        return sum(len(path.read_text().splitlines()) for path in paths)

    assert [title for title, *_ in LINES] == list(BINDINGS)
    for title, *counts in LINES:
        *folders, package = BINDINGS[title]
        sources = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix != ".map"]
        python = [path for path in (ROOT / package).glob("*.py") if package and path.name not in LAYERS]
        assert [int(n or 0) for n in counts] == pytest.approx([lines(sources), lines(python)], rel=0.05, abs=5)


def test_bindings_name_no_operator():
    """A new operator changes none of them. JAX's Python has no exceptions; its gradient formulas use plain products."""
    names = [name for name in pytest.importorskip("fusedops.torch.library").BUILT_IN if "_" in name]
    folders = {folder for *folders, _ in BINDINGS.values() for folder in folders}
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    sources += [path for path in (ROOT / "fusedops/jax").glob("*.py") if path.name not in LAYERS]
    found = re.compile(rf"\b({'|'.join(names)})\b")
    assert len(names) > 20 and not [path for path in sources if found.search(path.read_text())]


@pytest.mark.parametrize("operator", CALLS)
def test_python_runs_in_the_files_of_the_table(any_backend, operator):
    """In the first call with these attributes, and its backward."""
    framework = any_backend.framework
    if framework == "torch" and not autograd_in_cpp():
        pytest.skip("autograd is in Python")
    package, seen = Path(fusedops.__file__).parents[1], set()
    x = any_backend.tensor(VALUES, "float32")

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
        return CALLS[operator](any_backend, x)

    if framework == "torch":
        x.requires_grad_()
        profiled(lambda: call().sum().backward())
    else:
        with any_backend.tf.GradientTape() as tape:
            tape.watch(x)
            y = profiled(call)
        profiled(lambda: tape.gradient(y, x))
    inside = [Path(file) for file in seen if package / "fusedops" in Path(file).parents]
    ran = {made for file in seen for name, made in GENERATED.items() if re.fullmatch(name, file)}
    ran |= {str(file.relative_to(package)) for file in inside}
    assert ran == {file for file in files(operator, "both", TITLES[framework]) if file.endswith(".py")}
