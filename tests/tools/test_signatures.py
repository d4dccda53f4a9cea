"""Kernels look up their arguments by name, and the compiler refuses an undeclared name."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.running import ROOT

CORE = ROOT / "core_cuda"

PROGRAM = """
#include "ops/attention/softmax.h"
#include "ops/normalization/norm.h"
using namespace fusedops;
inline constexpr Signature kNorm{{
    .name = "norm",
    .inputs = {{{{"x"}}, {{"weight"}}, {{"{input}"}}}},
    .outputs = {{{{"y", "x"}}, {{"rstd", "x"}}}},
    .attributes = {{{{"eps", Type::f64, "0.0"}}}},
}};
void look_up(const Call& call) {{
  {expression};
}}
"""


def compile_error(tmp_path: Path, expression: str, input: str = "residual") -> str:
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("g++ is not installed")
    source = tmp_path / "program.cpp"
    source.write_text(PROGRAM.format(expression=expression, input=input))
    arguments = [compiler, "-std=c++20", "-fsyntax-only", f"-I{CORE}", str(source)]
    return subprocess.run(arguments, capture_output=True, text=True).stderr


FOUND = (
    '(void)call.inputs[input_of(kSoftmax, "mask")]',
    '(void)call.outputs[output_of(kSoftmax, "y")]',
    'double scale = call.attributes[attribute_of<double>(kSoftmax, "scale")]; (void)scale',
    "(void)norm_forward_of<kNorm, float>(call)",
)
ABSENT = (
    '(void)call.inputs[input_of(kSoftmax, "maks")]',
    '(void)call.outputs[output_of(kSoftmax, "x")]',
    '(void)call.attributes[attribute_of<double>(kSoftmax, "scales")]',
)


def test_declared_names_compile(tmp_path):
    assert not compile_error(tmp_path, ";\n".join(FOUND))


@pytest.mark.parametrize("expression", ABSENT)
def test_an_undeclared_name_does_not_compile(tmp_path, expression):
    assert "the operator declares no such name" in compile_error(tmp_path, expression)


def test_an_attribute_of_another_type_does_not_compile(tmp_path):
    error = compile_error(tmp_path, '(void)call.attributes[attribute_of<double>(kSoftmax, "causal")]')
    assert "the attribute is declared with another type" in error


def test_a_name_that_shared_code_does_not_know_does_not_compile(tmp_path):
    error = compile_error(tmp_path, "(void)norm_forward_of<kNorm, float>(call)", input="residuals")
    assert "the operator declares a name that is not known here" in error
