"""docs/debugging.md: its programs run and print the shown output, and the names that it mentions exist."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

import fusedops
from tests.helpers.running import ROOT, run

PAGE = (ROOT / "docs/debugging.md").read_text()
# A block of code, and the output that follows it, if any.
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```\n(?:```text\n(.*?)^```)?", PAGE, re.M | re.S)
PROGRAMS = [(code, output) for kind, code, output in BLOCKS if kind == "python"]
COMMANDS = [line for kind, code, _ in BLOCKS if kind == "sh" for line in code.replace("\\\n", "").splitlines()]
CORE = "\n".join(path.read_text() for path in (ROOT / "core_cuda").rglob("*") if path.is_file())


def named(pattern: str, text: str = PAGE) -> set[str]:
    found = set(re.findall(pattern, text))
    assert found, pattern
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("code", "output"), PROGRAMS, ids=map(str, range(len(PROGRAMS))))
def test_program(code, output):
    for framework in re.findall("^import (torch|tensorflow)", code, re.M):
        if find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    done = run("-c", code, cwd=ROOT)
    printed = done.stdout + done.stderr
    fails = "Error" in output or "!!!" in output
    assert (done.returncode != 0) == fails, printed
    # Only the names of a table are compared: its numbers vary.
    for line in output.splitlines():
        assert (line if fails else line.split()[0]) in printed


def test_tests_that_it_selects():
    lines = [line for line in COMMANDS if " -m pytest " in line or "ARGS=" in line]
    assert lines
    for line in lines:
        words = shlex.split(line)
        if "pytest" in words:
            arguments = words[words.index("pytest") + 1 :]
        else:
            (given,) = (word.removeprefix("ARGS=") for word in words if word.startswith("ARGS="))
            arguments = shlex.split(given)
        done = run("-m", "pytest", "--collect-only", "-q", *arguments, cwd=ROOT)
        assert done.returncode == 0, f"{line}: {done.stdout}"


def test_targets_options_and_variables():
    makefile = (ROOT / "Makefile").read_text()
    for target in named(r"make ([a-z-]+)"):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for option in named(r"\b(DEBUG|CUDA|FUSEDOPS_[A-Z_]+)="):
        assert f"{option}=" in makefile or f'"{option}"' in CORE, option


def test_kernels_and_functions():
    for kernel in named(r"`(\w+_kernel)\b"):
        assert re.search(rf"\b{kernel}\(", CORE), kernel
    for kernels in named(r"`(\w+_)…kernel`"):
        assert re.search(rf"\b{kernels}\w*kernel\(", CORE), kernels
    for function in named(r"'break (?:fusedops::)?(\w+)"):
        assert re.search(rf"\b{function}\(", CORE), function
    for file in named(r"core_cuda/[\w/.]+"):
        assert (ROOT / file).is_file(), file


def test_the_table_has_all_kernels():
    lines = re.findall(r"^\| `.*_…?kernel.*|^\| `attention_….*", PAGE, re.M)
    listed = [name.replace("…", r"\w*") for line in lines for name in re.findall(r"`([\w…]+)", line)]
    bounds = r"(?:\s*__\w+__\((?:[^()]|\([^()]*\))*\))*"  # __launch_bounds__, __maxnreg__
    kernels = re.findall(rf"__global__ void{bounds}\s*(\w+)\(", CORE)
    assert len(kernels) > 40
    assert [kernel for kernel in kernels if not any(re.fullmatch(name, kernel) for name in listed)] == []


def test_sentences_of_errors():
    folders = (Path(fusedops.__file__).parent, ROOT / "torch_binding")
    sources = [path for folder in folders for path in folder.rglob("*")]
    code = CORE + "".join(path.read_text() for path in sources if path.suffix in (".py", ".cpp"))
    for words in (
        "must be on",
        "has no gradient; detach it",
        "a kernel launch",
        "is damaged: ",
        "was built for CPUs with",
    ):
        assert words in PAGE and words in code, words
