"""fo.load: refused libraries, each with one message, the same in both frameworks. No operator is added."""

from __future__ import annotations

import re

import pytest

from fusedops.gradients import GRADIENTS
from tests.helpers.custom_operators import need_compiler, small


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache shared by both frameworks."""
    return tmp_path_factory.mktemp("a cache")


@pytest.fixture(autouse=True)
def _environment(monkeypatch, cache):
    for name, value in {"FUSEDOPS_CACHE_DIR": str(cache), "CUDA": "0", "DEBUG": "1"}.items():  # compiles faster
        monkeypatch.setenv(name, value)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "mine.cpp"
    path.write_text(small("mine"))
    return path


HOSTILE = ("", "../mine", "a/b", "a;ls", "$(ls)", "`ls`", "a b", "a\n", "mïne", "1st", "_mine", "class", "m" * 200)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names(package, source, name):
    sentence = "fusedops.load: name must be a name of letters, digits and underscores that begins with a letter"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}, at most 100; got "):
        package.load(name, source)


@pytest.mark.parametrize("name", ["relu", "load", "library", "ops", "a module"])
def test_names_of_fusedops_are_refused(package, source, name):
    if name == "a module":  # a module that may not be imported yet
        name = {"fusedops.torch": "nn", "fusedops.tf": "keras", "fusedops.jax": "nnx"}[package.__name__]
    with pytest.raises(ValueError, match=f"^fusedops.load: name must be new; got '{name}', one that fusedops has$"):
        package.load(name, source)


def test_invalid_names(package, source):
    with pytest.raises(TypeError, match=r"^fusedops.load: name must be a str; got PosixPath$"):
        package.load(source, source)


@pytest.mark.parametrize("sources", [None, 3, [None], [3.0]], ids=repr)
def test_invalid_sources(package, sources):
    with pytest.raises(TypeError, match=r"^fusedops.load: sources must be a path or a list of paths; got "):
        package.load("mine", sources)


@pytest.mark.parametrize(
    "files, sentence",
    [
        ("mine.h", "be .cpp and .cu files; got '{folder}/mine.h'"),
        ("mine", "be .cpp and .cu files; got '{folder}/mine'"),
        ("", "be .cpp and .cu files; got '{folder}'"),
        ("mine.cu", "have a .cpp file, for declarations, rules and CPU kernels; got mine.cu"),
        (" mine.cpp", "be files whose names have letters, digits and ._+- alone; got ' mine.cpp'"),
        ("$(touch x).cpp", "be files whose names have letters, digits and ._+- alone; got '$(touch x).cpp'"),
        ("-o.cpp", "be files whose names have letters, digits and ._+- alone; got '-o.cpp'"),
    ],
)
def test_sources(package, tmp_path, files, sentence):
    path = tmp_path / files
    if files:
        path.touch()
    with pytest.raises(ValueError) as raised:
        package.load("mine", path)
    assert str(raised.value) == f"fusedops.load: sources must {sentence.format(folder=tmp_path)}"


def test_no_sources(package):
    sentence = r"^fusedops.load: sources must have a .cpp file, for declarations, rules and CPU kernels; got none$"
    with pytest.raises(ValueError, match=sentence):
        package.load("mine", [])


@pytest.mark.parametrize("name", ["nowhere.cpp", "folder.cpp"])
def test_missing_sources(package, source, tmp_path, name):
    (tmp_path / "folder.cpp").mkdir()
    with pytest.raises(FileNotFoundError) as raised:
        package.load("mine", [source, str(tmp_path / name)])
    assert str(raised.value) == f"fusedops.load: sources must be files that exist; got '{tmp_path / name}'"


def test_no_compiler(package, source, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    sentence = r"the compiler /nowhere/g\+\+ was not found, or does not run; install g\+\+ 11 or newer, or set CXX$"
    with pytest.raises(RuntimeError, match=f"^fusedops.load: {sentence}"):
        package.load("mine", source)


def test_a_bad_option(package, source, monkeypatch):
    monkeypatch.setenv("DEBUG", "yes")
    with pytest.raises(RuntimeError, match=r"^fusedops.load: DEBUG must be 0 or 1; got yes$"):
        package.load("mine", source)


def test_a_source_that_does_not_compile(package, source):
    need_compiler()
    source.write_text("#include <cmath>\n\nint broken( { }\n")
    with pytest.raises(RuntimeError) as raised:
        package.load("mine", source)
    first, _, rest = str(raised.value).partition("\n")
    assert re.match(rf"fusedops\.load: the compiler failed: {source}:3:\d+: error: ", first)
    assert "int broken( { }" in rest


@pytest.mark.parametrize(
    ("look_up", "name"), [('attribute_of<double>(kMine, "alhpa")', "alhpa"), ('input_of(kMine, "bias")', "bias")]
)
def test_the_first_error_locates_an_undeclared_name(package, source, look_up, name):
    """The first error contains the name and its place in the author's code."""
    need_compiler()
    signature = (
        '{.name = "mine", .inputs = {{"x"}}, .outputs = {{"y", "x"}}, .attributes = {{"alpha", Type::f64, "1.0"}}}'
    )
    lines = [
        '#include "core/declaration/operator.h"',
        "using namespace fusedops;",
        f"constexpr Signature kMine{signature};",
        f"auto look_up() {{ return {look_up}; }}",
    ]
    source.write_text("\n".join(lines))
    with pytest.raises(RuntimeError) as raised:
        package.load("mine", source)
    first = str(raised.value).partition("\n")[0]
    assert re.fullmatch(rf'fusedops\.load: the compiler failed: {source}:4:\d+: error: .*"{name}".*', first)


def test_a_source_that_does_not_link(package, source):
    """All symbols must be defined: a library shares none with the core."""
    need_compiler()
    source.write_text('extern "C" void other();\nextern "C" void mine() { other(); }\n')
    with pytest.raises(RuntimeError, match=r"^fusedops.load: the compiler failed: .*undefined reference to .other"):
        package.load("mine", source)


LIBRARY = """
extern "C" FUSEDOPS_EXPORT const fusedops::Library* fusedops_library() {
  static const fusedops::Operator* const operators[] = {&fusedops::small()};
  static const fusedops::Library library{{.version = 0}, operators, 1};
  return &library;
}
"""
TAKEN = "relu_backward"
STEP = '.derivative = {{.op = "nothing", .inputs = {"dy"}, .gradients = {{"x", "dx"}}}}, '


@pytest.mark.parametrize(
    "code, sentence",
    [
        pytest.param(
            small("mine", shown=""),
            "fusedops.load: sources must show their operators with FUSEDOPS_LIBRARY(...); got mine.cpp without it",
            id="nothing shown",
        ),
        pytest.param(
            small("mine", shown=LIBRARY),
            "fusedops: the library of operators was compiled for another version of fusedops; compile it again",
            id="other headers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            small("mine", rest=STEP),
            "fusedops.mine: its derivative calls nothing, which is no operator",
            id="derivative",
        ),
        pytest.param(small(TAKEN), f"fusedops: an operator is already named like {TAKEN}", id="taken"),
    ],
)
def test_libraries(package, source, code, sentence):
    need_compiler()
    source.write_text(code)
    with pytest.raises(ValueError) as raised:
        package.load("mine", source)
    assert str(raised.value) == sentence
    assert not hasattr(package, "mine") and not hasattr(package.ops, "mine")


def formula(f, c, dy):
    return {"x": dy}


@pytest.mark.parametrize(
    "gradients, kind, sentence",
    [
        ([formula], TypeError, "gradients must be a dict; got list"),
        ({"relu": formula}, ValueError, f"gradients must name operators of the library, {TAKEN}; got 'relu'"),
        ({TAKEN: 3}, TypeError, f"the gradient of {TAKEN} must be a function; got int"),
        ({TAKEN: (formula, "xz")}, ValueError, f"the gradient of {TAKEN} must read inputs and outputs, x, y; got 'xz'"),
        ({TAKEN: (formula, [3])}, ValueError, f"the gradient of {TAKEN} must read inputs and outputs, x, y; got [3]"),
        ({TAKEN: (formula, 3)}, ValueError, f"the gradient of {TAKEN} must read inputs and outputs, x, y; got 3"),
        (
            {TAKEN: (formula, [["x"]])},
            ValueError,
            f"the gradient of {TAKEN} must read inputs and outputs, x, y; got [['x']]",
        ),
        (
            {TAKEN: lambda f, dy: {}},
            ValueError,
            f"the gradient of {TAKEN} must take the arguments f, c, dy; got (f, dy)",
        ),
    ],
)
def test_gradients(package, source, gradients, kind, sentence):
    """Gradients are checked before anything is added; here the library would be refused."""
    need_compiler()
    source.write_text(small(TAKEN))
    with pytest.raises(kind) as raised:
        package.load("mine", source, gradients=gradients)
    assert str(raised.value) == f"fusedops.load: {sentence}"


def test_a_refused_library_leaves_formulas_as_they_were(package, source):
    need_compiler()
    source.write_text(small(TAKEN))
    before = dict(GRADIENTS)
    with pytest.raises(ValueError, match=f"already named like {TAKEN}"):
        package.load("mine", source, gradients={TAKEN: formula})
    assert before == GRADIENTS


@pytest.mark.slow
def test_a_declared_derivative_and_a_formula(package, source):
    need_compiler()
    step = STEP.replace("nothing", "relu_backward").replace('{"dy"}', '{"dy", "y"}')
    source.write_text(small("relu", rest=step))
    with pytest.raises(
        ValueError, match=r"^fusedops.load: gradients must be of operators that declare no derivative; "
    ):
        package.load("mine", source, gradients={"relu": formula})
