"""README.md and the guides in docs/: their programs run, their links lead somewhere, and they are short."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fusedops
from tests.helpers.running import ROOT, blocks, need_inductor, python

GUIDES = ("README.md", "docs/layers.md", "docs/converting.md", "docs/jax.md")
PROGRAMS = {
    f"{guide}-{number}": code
    for guide in GUIDES
    for number, code in enumerate(blocks("python", (ROOT / guide).read_text()))
}
PROGRAMS["docs/recipes.md"] = "\n".join(blocks("python", (ROOT / "docs/recipes.md").read_text()))
FRAMEWORKS = {"torch": r"\b(torch|transformers)\b", "tensorflow": r"\b(tensorflow|keras)\b", "jax": r"\bjax\b"}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LINES = 6000  # of all documents, or a reader finds nothing


def anchors_of(text: str) -> set[str]:
    """The anchors of headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


# Each program has its own names and folder. They share their imports, which take longer than the programs.
RUN = """
import json, os, pathlib
for name, code in json.loads(pathlib.Path({}).read_text()).items():
    os.makedirs(os.path.join({}, name))
    os.chdir(os.path.join({}, name))
    exec(compile(code, name, "exec"), {{"__name__": "__main__"}})
"""


def run_programs(programs, tmp_path):
    file = tmp_path / "programs.json"
    file.write_text(json.dumps(programs))
    folder = str(tmp_path)
    done = python(RUN.format(repr(str(file)), repr(folder), repr(folder)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_programs(framework, tmp_path):
    programs = {name: small(code) for name, code in PROGRAMS.items() if of_framework(framework, code)}
    programs = {name: code for name, code in programs.items() if of_fusedops(code) and not missing(code)}
    if not programs:
        pytest.skip(f"{framework} is not installed")
    if framework == "torch":
        need_inductor()
    run_programs(programs, tmp_path)


@pytest.mark.slow
def test_a_program_that_does_without_fusedops(tf_cpu, tmp_path):
    """It loads a file that was saved with fusedops."""
    import keras

    import fusedops.tf.keras as fk

    layers = [keras.Input((4,)), fk.LayerNormalization(), fk.Dense(3, activation="gelu")]
    keras.Sequential(layers).save(tmp_path / "model.keras")
    ((name, code),) = (each for each in PROGRAMS.items() if not of_fusedops(each[1]))
    code = code.replace("model.keras", str(tmp_path / "model.keras"))
    run_programs({name: code + "\nimport sys; assert 'fusedops' not in sys.modules"}, tmp_path)


def of_fusedops(code):
    return re.search(r"^(import|from) fusedops", code, re.M) is not None


def of_framework(framework, code):
    return re.search(r"^(?:import|from) " + FRAMEWORKS[framework], code, re.M) is not None


def missing(code):
    modules = re.findall(r"^(?:import|from) (torch|tensorflow|keras|transformers|peft|jax|flax|optax)\b", code, re.M)
    modules += ["optax"] * ("fusedops.jax.optim" in code)
    modules += ["accelerate"] * ("Trainer(" in code)
    return any(find_spec(module) is None for module in modules)


def small(code):
    """The model that the guide measures, with fewer numbers."""
    return code.replace(
        "hidden_size=512, intermediate_size=1376", "hidden_size=64, intermediate_size=96, vocab_size=99"
    ).replace("randint(0, 32000,", "randint(0, 99,")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        other = page.parent / path if path else page
        if path.startswith("../fusedops/"):  # in the installed package: a checkout may be tested without its own
            other = Path(fusedops.__file__).parents[1] / path.removeprefix("../")
        assert other.exists(), target
        assert not heading or heading in anchors_of(other.read_text()), target


def test_sources_that_the_notes_name_exist():
    sources = {path.name for folder in ("core_cuda", "fusedops", "benchmarks") for path in (ROOT / folder).rglob("*.*")}
    text = "".join(page.read_text() for page in (ROOT / "docs/notes").glob("*.md"))
    named = set(re.findall(r"[\w/]*?(\w+\.(?:cuh?|cpp|h|py))\b", text))
    assert len(named) > 40
    assert not named - sources


def test_documents_are_short():
    lines = {page: len(page.read_text().splitlines()) for page in (*PAGES, ROOT / "examples/README.md")}
    assert sum(lines.values()) <= MAX_LINES
    assert lines[ROOT / "docs/performance.md"] <= 150
