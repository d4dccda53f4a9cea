"""Libraries of user-written operators: the guide's, word for word, and small ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fusedops.building.cuda import NoCudaError, find_toolkit
from fusedops.building.options import Options
from tests.helpers.running import ROOT, blocks
from tests.helpers.workers import shared_folder

GUIDE = (ROOT / "docs/adding-an-operator.md").read_text()

_SHOWN = """
#include "core/declaration/library.h"
#include "ops/elementwise/square.h"
#include "ops/elementwise/square_backward.h"

static const fusedops::Operator kOperators[] = {fusedops::square(), fusedops::square_backward()};

FUSEDOPS_LIBRARY(&kOperators[0], &kOperators[1])
"""


def need_compiler(device: str = "cpu") -> None:
    options = Options.from_environment()
    if shutil.which(options.cxx[0]) is None:
        pytest.skip(f"there is no {options.cxx[0]}")
    if device == "cuda":
        try:
            find_toolkit(options)
        except NoCudaError as error:
            pytest.skip(f"no kernels for GPUs can be compiled: {error}")


def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all processes of pytest, which share compiled libraries."""
    return shared_folder(tmp_path_factory) / "a cache of operators"


def write_guide(folder: Path) -> list[Path]:
    """The sources of the guide's operator and of its derivative, which the guide describes."""
    places = re.findall(r"^## \d\. .*`core_cuda/(ops/\S+\.(?:h|cpp|cu))`$", GUIDE, re.M)
    *codes, formula = [code for code in blocks("cpp", GUIDE) if "Rule& rule" not in code]
    assert len(places) == len(codes) == 3
    sources = [folder / "library.cpp"]
    sources[0].write_text(_SHOWN)
    for place, code in zip(places, codes, strict=True):
        for name, text in ((place, code), (place.replace("square", "square_backward"), _backward(code, formula))):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
            sources += [path] * (path.suffix != ".h")
    return sources


def _backward(code: str, formula: str) -> str:
    """Derives the backward operator from the forward's code, as the guide describes."""
    assert "elementwise_rule<kSquareBackward>" in GUIDE
    code = re.sub(r"\.derivative = .*\n\s*", "", code)
    for old, new in {
        "square": "square_backward",
        "Square": "SquareBackward",
        '.inputs = {{"x"}}': '.inputs = {{"dy"}, {"x"}}',
        '"y"': '"dx"',
        '{{"... -> ..."}}': '{{"..., ... -> ..."}}',
        "return [](compute_t<T> x) { return x * x; };": formula,
    }.items():
        code = code.replace(old, new)
    return code


def formula_of_guide() -> str:
    """The Python code of the guide's second derivative."""
    return next(code for code in blocks("python", GUIDE) if "@gradient" in code)


def small(name: str, body: str = "return x + x;", rest: str = "", shown: str | None = None) -> str:
    """The source of an elementwise operator without a derivative; `rest`: the rest of its implementation."""
    return f"""
#include "core/cpu/elementwise.h"
#include "core/declaration/library.h"

namespace fusedops {{
namespace {{

constexpr Signature kOperator{{.name = "{name}", .inputs = {{{{"x"}}}}, .outputs = {{{{"y", "x"}}}}}};

struct Formula {{
  template <class T>
  auto prepared() const {{
    return [](compute_t<T> x) {{ {body} }};
  }}
}};

Status rule(Rule& rule) {{
  FUSEDOPS_TRY(rule.floating(0));
  rule.outputs[0] = rule.inputs[0];
  return {{}};
}}

Status on_cpu(const Call& call) {{ return cpu::elementwise<kOperator>(call, Formula{{}}); }}

const Operator& small() {{
  static const Operator op{{kOperator, {{{rest}.rule = rule, .cpu = on_cpu}}}};
  return op;
}}

}}  // namespace
}}  // namespace fusedops

{"FUSEDOPS_LIBRARY(&fusedops::small())" if shown is None else shown}
"""
