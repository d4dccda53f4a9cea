"""Lists, numbers and struct layouts that exist twice, in the core and in Python or next to an enum, agree."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import pytest

from fusedops.expressions import compiler, program, source, structs
from fusedops.expressions.graph import OPERATIONS, ROWS
from tests.helpers.running import ROOT

CORE = ROOT / "core_cuda"

FOLDS = tuple(row.removeprefix("row_") for row in ROWS)
PREFIXES = {"f": "float", "bf": "bfloat", "u": "uint", "i": "int", "c": "complex"}


def enumerators(file, name):
    text = (CORE / file).read_text()
    body = re.search(rf"enum (?:class )?{name} ?(?:: \w+ )?{{(.*?)}};", text, re.DOTALL)[1]
    return tuple(re.findall(r"\w+", re.sub(r"//.*", "", body)))


def strings(file, name):
    """The strings of a C++ array."""
    body = re.search(rf"\b{name}\[\] = {{(.*?)}};", (ROOT / file).read_text(), re.DOTALL)[1]
    return tuple(re.findall(r'"([^"]*)"', body))


def dtype_name(enumerator):
    """float64 of f64, float8_e5m2 of f8_e5m2."""
    special = {"boolean": "bool", "other": "an unsupported dtype"}
    return special.get(enumerator) or re.sub(r"^[a-z]+", lambda prefix: PREFIXES[prefix[0]], enumerator)


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("core/program/program.h", "Op", OPERATIONS),
        ("core/program/program.h", "Fold", FOLDS),
        ("core/program/prelude.cuh", "", source.KINDS),
        ("core/program/arguments.h", "Access", strings("core_cuda/core/program/variant.cpp", "kAccess")),
        ("core/program/arguments.h", "Type", strings("core_cuda/core/program/variant.cpp", "kTypes")),
        ("core/declaration/signature.h", "Kind", strings("core_cuda/core/declaration/c_api.cpp", "kKinds")),
        ("core/common/float8.h", "Scaling", strings("core_cuda/core/common/float8.h", "kScalings")),
    ],
)
def test_lists_have_the_names_of_an_enum(file, name, expected):
    assert enumerators(file, name) == expected


def test_dtypes_have_their_names():
    declared = strings("core_cuda/core/declaration/dtype.h", "kDTypes")
    assert tuple(map(dtype_name, enumerators("core/declaration/dtype.h", "DType"))) == declared


@pytest.mark.parametrize(
    ("file", "name", "spelled"),
    [
        ("core_cuda/core/declaration/c_api.cpp", "kTypes", ("float", "int", "bool", "str", "floats")),
        ("torch_binding/schema.cpp", "kTypes", ("float", "int", "bool", "str", "float[]")),
        # TensorFlow gets doubles and lists of them as strings.
        ("tf_binding/schema.cc", "kTypes", ("string", "int", "bool", "string", "string")),
        (
            "core_cuda/core/declaration/operator.cpp",
            "kExpected",
            ("a number", "an integer", "a bool", "a string", "a list of numbers"),
        ),
    ],
)
def test_types_of_attributes_are_spelled_in_the_order_of_the_enum(file, name, spelled):
    expected = dict(zip(("f64", "i64", "boolean", "string", "f64s"), spelled, strict=True))
    types = enumerators("core/declaration/signature.h", "Type")
    assert strings(file, name) == tuple(expected[x] for x in types)


NUMBERS = {
    "int(Kind::tensor)": program.TENSOR,
    "int(Kind::optional)": program.OPTIONAL,
    "int(Kind::scalar)": program.NUMBER,
    "kMaxInputs": program.MAX_INPUTS,
    "kMaxOutputs": program.MAX_RESULTS,
    "program::kMaxProgramInputs": program.MAX_INPUTS,
    "program::kMaxProgramResults": program.MAX_RESULTS,
    "program::kLikeAll": structs.LIKE_ALL,
    "program::kLikeRows": structs.LIKE_ROWS,
}
# The struct of the core and, if they differ, its names of the fields.
STRUCTS = {
    structs.Instruction: ("program::Instruction", {}),
    structs.Reduction: ("program::Reduction", {"kind": "fold"}),
    structs.Result: ("FusedopsResult", {"value": "result.value", "like": "result.like"}),
    structs.InputText: ("FusedopsInput", {}),
    structs.DefinitionStruct: ("FusedopsDefinition", {}),
    compiler._Text: ("FusedopsText", {}),
}


def facts():
    """Conditions in C++: the numbers, the size of each struct, the offset and size of each field."""
    yield from (f"{name} == {number}" for name, number in NUMBERS.items())
    for mirror, (name, names) in STRUCTS.items():
        yield f"sizeof({name}) == {ctypes.sizeof(mirror)}"
        for field, kind in mirror._fields_:
            theirs = names.get(field, field)
            yield f"offsetof({name}, {theirs}) == {getattr(mirror, field).offset}"
            yield f"sizeof({name}::{theirs}) == {ctypes.sizeof(kind)}"


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_numbers_and_layouts_are_those_of_the_core(tmp_path):
    headers = ("cstddef", "core/program/arguments.h", "core/program/compiler.h", "core/program/define.h")
    lines = [f"#include <{header}>" for header in headers]
    lines += ["using namespace fusedops;", *(f"static_assert({fact});" for fact in facts())]
    (tmp_path / "mirrors.cpp").write_text("\n".join(lines))
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{CORE}", "mirrors.cpp"]
    compiled = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr[:3000]


def test_headers_for_nvrtc_are_those_that_a_kernel_includes():
    found, pending = {"core/program/nvrtc_std.h"}, ["core/program/kernel.cuh"]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += re.findall(r'#include "(.*?)"', (CORE / name).read_text())
    assert found == set(compiler._HEADERS)
