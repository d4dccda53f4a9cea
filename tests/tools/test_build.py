"""The build and the loader: messages for missing or outdated parts, and incremental builds."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import fusedops
from fusedops import loading
from fusedops.building import ahead, core, cuda
from fusedops.building import options as options_module
from fusedops.building.architectures import Architecture, choose
from fusedops.building.autograd import build_autograd
from fusedops.building.core import Cuda, add_core, announcement
from fusedops.building.cuda import NoCudaError
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import BuildError, Options
from fusedops.building.progress import silent
from tests.helpers.running import ROOT, copy_without_libraries, python

RUN = {
    "torch": "Run: make build-torch, or in Python: import fusedops; fusedops.torch.jit.load()",
    "tf": "Run: make build-tf",
    "jax": "Run: make build-jax",
}
END = {name: re.escape(text) + "$" for name, text in RUN.items()}
FACTS = {
    "fusedops": fusedops.__version__,
    "bytes": {"_C.abi3.so": 0, "_ops.so": 0, "_xla.so": 0, "_ffi.so": 0},
    "cuda": "13.0",
    "without_cuda": None,
    "architectures": ["8.0", "9.0+PTX"],
    "cpu_flags": "-march=x86-64-v3",
    "build_type": "release",
}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A function that simulates installed frameworks, and bindings built against these versions."""
    monkeypatch.setattr(loading, "_folders", {name: tmp_path / name for name in loading.FRAMEWORKS})
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(loading, "_missing_instructions", lambda cpu_flags: "")

    def pretend(installed, built, **facts):
        def version(distribution):
            if distribution not in installed:
                raise metadata.PackageNotFoundError(distribution)
            return installed[distribution]

        monkeypatch.setattr(loading.metadata, "version", version)
        for name, framework_version in built.items():
            framework = loading.FRAMEWORKS[name]
            framework.folder.mkdir(exist_ok=True)
            for file in framework.files:
                (framework.folder / file).touch()
            (framework.folder / "_build.json").write_text(json.dumps(FACTS | {"framework": framework_version} | facts))

    return pretend


def sentence(framework):
    with pytest.raises(ImportError) as error:
        loading.library(framework)
    return str(error.value)


def test_a_good_build_is_found(environment):
    environment({"torch": "2.11.0+cu130", "tensorflow-cpu": "2.21.1"}, {"torch": "2.13.0", "tf": "2.21.0"})
    assert loading.library("torch").name == "_C.abi3.so"
    assert loading.library("tf").name == "_ops.so"


def test_nothing_is_built(environment):
    environment({"torch": "2.13.0", "tensorflow": "2.21.0"}, {})
    assert re.search(rf"is not built.*PyTorch 2\.13\.0 is installed.*{END['torch']}", sentence("torch"))
    assert re.search(rf"is not built.*TensorFlow 2\.21\.0 is installed.*{END['tf']}", sentence("tf"))


def test_the_library_is_damaged(environment):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"}, bytes={"_C.abi3.so": 1000})
    assert re.search(rf"is damaged: .*_C\.abi3\.so must have 1000 bytes; it has 0\. {END['torch']}", sentence("torch"))


@pytest.mark.parametrize("facts", ["[]", "null", "3", "garbage", '{"fusedops": 1}'])
def test_the_build_facts_are_unreadable(environment, facts):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"})
    (loading.FRAMEWORKS["torch"].folder / "_build.json").write_text(facts)
    assert re.search(rf"is not built: there is no readable .*_build\.json; .* {END['torch']}", sentence("torch"))


def test_the_library_is_missing(environment):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"})
    (loading.FRAMEWORKS["torch"].folder / "_C.abi3.so").unlink()
    assert "there is no" in sentence("torch")


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_a_build_is_interrupted_while_it_replaces_libraries(environment, tmp_path, monkeypatch, framework):
    environment({"torch": "2.13.0", "tensorflow": "2.21.0"}, {framework: "2.21.0"})
    there = loading.FRAMEWORKS[framework]
    made = [tmp_path / file for file in there.files]
    for library in made:
        library.touch()
    monkeypatch.setattr(os, "replace", None)  # as if it was killed before
    with pytest.raises(TypeError):
        ahead._install(made, there.folder)
    assert re.search(
        rf"there is no readable .*_build\.json, which a build writes last: one is under way, or was broken off; .*"
        rf"{END[framework]}",
        sentence(framework),
    )


def test_facts_stay_where_no_library_is_replaced(environment):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"})
    folder = loading.FRAMEWORKS["torch"].folder
    ahead._install([folder / "_C.abi3.so"], folder)
    assert loading.library("torch")


@pytest.mark.parametrize("framework, title", [("torch", "PyTorch"), ("tf", "TensorFlow"), ("jax", "JAX")])
def test_the_framework_is_missing(environment, framework, title):
    environment({}, {framework: "2.21.0"})
    assert f"needs {title}, which is not installed; it is built against {title} 2.21.0" in sentence(framework)
    assert sentence(framework).endswith("then " + RUN[framework].removeprefix("Run: "))


def test_torch_is_too_old(environment):
    environment({"torch": "2.9.1+cu128"}, {"torch": "2.13.0"})
    assert "needs PyTorch 2.10 or newer, and PyTorch 2.9.1+cu128 is installed" in sentence("torch")
    assert "built against PyTorch 2.13.0" in sentence("torch")
    assert sentence("torch").endswith("then " + RUN["torch"].removeprefix("Run: "))


def test_tensorflow_has_another_version(environment):
    environment({"tensorflow": "2.21.0"}, {"tf": "2.20.1"})
    assert sentence("tf") == (
        "fusedops.tf was built against TensorFlow 2.20.1, and TensorFlow 2.21.0 is installed. Run: make build-tf"
    )


def test_tensorflow_is_too_old(environment):
    environment({"tensorflow": "2.19.1"}, {"tf": "2.21.0"})
    assert "needs TensorFlow 2.20 or newer, and TensorFlow 2.19.1 is installed" in sentence("tf")


def test_tensorflow_is_another_nightly_version(environment):
    environment({"tf-nightly": "2.22.0.dev20261120"}, {"tf": "2.22.0.dev20261119"})
    assert "was built against TensorFlow 2.22.0.dev20261119" in sentence("tf")


def test_the_second_library_is_of_another_build(environment):
    environment({"tensorflow": "2.21.0"}, {"tf": "2.20.1"})
    subject = "fusedops.tf's _xla.so was built"
    assert loading.fault(loading.FRAMEWORKS["tf"], "_xla.so") == (
        f"{subject} against TensorFlow 2.20.1, and TensorFlow 2.21.0 is installed. Run: make build-tf"
    )
    environment({"tensorflow": "2.21.0"}, {"tf": "2.21.0"}, fusedops="0.0.1")
    assert loading.fault(loading.FRAMEWORKS["tf"], "_xla.so").startswith(f"{subject} from fusedops 0.0.1; this is ")


@pytest.mark.parametrize(
    "version, file",
    [
        ("2.13.0+cpu", "_autograd.torch2.13.so"),
        ("2.13.1", "_autograd.torch2.13.so"),
        ("2.16.0.dev20261120+cu130", "_autograd.torch2.16.0.dev20261120+cu130.so"),
    ],
)
def test_an_autograd_library_is_for_one_minor_version_of_torch(version, file):
    assert loading.autograd_file(version) == file


def test_show_config_locates_autograd(environment, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "fusedops.torch.autograd_library", raising=False)
    monkeypatch.delenv("FUSEDOPS_TORCH_AUTOGRAD", raising=False)
    file = "_autograd.torch2.13.so"
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"}, bytes={"_C.abi3.so": 0, file: 0})
    (loading.FRAMEWORKS["torch"].folder / file).touch()
    fusedops.show_config()
    assert re.search(r"\n  autograd +in C\+\+\n", capsys.readouterr().out)
    environment({"torch": "2.14.0"}, {"torch": "2.13.0"})
    fusedops.show_config()
    reason = re.search(r"fusedops\.torch: ready\n(?:  .*\n)*  autograd +in Python: (.*)\n", capsys.readouterr().out)[1]
    assert re.match(rf"fusedops\.torch's _autograd\.torch2\.14\.so is not built: .* {END['torch']}", reason)


def test_a_binding_of_jax_serves_later_versions(environment):
    environment({"jax": "0.11.3"}, {"jax": "0.10.2"})
    assert loading.fault(loading.FRAMEWORKS["jax"]) is None
    environment({"jax": "0.10.2"}, {"jax": "0.11.3"})
    assert re.search(rf"was built against JAX 0\.11\.3, and JAX 0\.10\.2 is installed.* {END['jax']}", sentence("jax"))


def test_fusedops_has_another_version(environment):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"}, fusedops="0.0.1")
    assert re.search(rf"built from fusedops 0\.0\.1; this is .* {END['torch']}", sentence("torch"))


def test_the_cpu_is_too_old(environment, monkeypatch):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"})
    monkeypatch.setattr(loading, "_missing_instructions", lambda cpu_flags: "avx2, fma")
    assert "was built for CPUs with avx2, fma; this one has not" in sentence("torch")


@pytest.mark.parametrize(
    "cpu_flags, cpuinfo, missing",
    [
        ("-march=x86-64-v3", "flags\t\t: fpu bmi2 f16c avx2 fma", ""),
        ("-march=x86-64-v3", "flags\t\t: fpu sse4_2 f16c avx", "avx2, bmi2, fma"),
        ("-march=x86-64-v2", "flags\t\t: fpu", ""),
        ("-march=x86-64-v3", None, ""),
    ],
)
def test_missing_cpu_features_are_detected(tmp_path, cpu_flags, cpuinfo, missing):
    file = tmp_path / "cpuinfo"
    if cpuinfo:
        file.write_text(f"processor\t: 0\n{cpuinfo}\nbugs\t\t:\n")
    assert loading._missing_instructions(cpu_flags, file) == missing


def test_show_config_lists_present_and_missing_parts(environment, capsys):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"})
    fusedops.show_config()
    text = capsys.readouterr().out
    for part in (fusedops.__version__, "fusedops.torch: ready", "8.0, 9.0+PTX, CUDA 13.0", "x86-64-v3"):
        assert part in text
    assert "fusedops.tf: not usable" in text
    assert "needs TensorFlow, which is not installed" in text


def test_show_config_says_why_there_are_no_kernels_for_the_gpu(environment, capsys):
    environment({"torch": "2.13.0"}, {"torch": "2.13.0"}, cuda=None, without_cuda="nvcc was not found")
    fusedops.show_config()
    assert "no kernels, because at the build nvcc was not found" in capsys.readouterr().out


def test_show_config_says_why_there_is_no_xla(environment, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "fusedops.tf.xla", raising=False)  # as before anything is loaded
    environment({"tensorflow": "2.21.0"}, {"tf": "2.21.0"})
    fusedops.show_config()
    assert re.search(r"fusedops\.tf: ready\n(  .*\n)*  XLA +ready\n", capsys.readouterr().out)
    (loading.FRAMEWORKS["tf"].folder / "_xla.so").unlink()
    fusedops.show_config()
    assert re.search(
        r"fusedops\.tf: ready\n(  .*\n)*  XLA +.*there is no .*_xla\.so.*make build-tf\n", capsys.readouterr().out
    )


def test_show_config_names_keras(environment, capsys):
    for keras, version in (({"keras": "3.15.1"}, r"3\.15\.1"), ({}, "not installed")):
        environment({"tensorflow": "2.21.0", **keras}, {"tf": "2.21.0"})
        fusedops.show_config()
        assert re.search(rf"  TensorFlow 2\.21\.0\n  Keras      {version}\n", capsys.readouterr().out)


def test_show_config_never_fails(environment, capsys):
    environment({"torch": "unknown", "tensorflow": "2.21.0"}, {"torch": "2.13.0", "tf": "2.21.0"})
    (loading.FRAMEWORKS["tf"].folder / "_build.json").write_text("{}")
    fusedops.show_config()
    text = capsys.readouterr().out
    assert "fusedops.torch: broken" in text
    assert "fusedops.tf is not built" in text


@pytest.mark.parametrize("framework", loading.FRAMEWORKS)
def test_importing_an_unbuilt_binding(tmp_path, framework):
    if loading.FRAMEWORKS[framework].installed() is None:
        pytest.skip("not installed")
    folder = copy_without_libraries(tmp_path)
    for code in (f"import fusedops.{framework}", f"from fusedops import {framework}"):
        done = python(code, folder=folder)
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: fusedops.{framework} is not built")
        assert done.stderr.strip().endswith(RUN[framework])


SHOW = """
import fusedops
fusedops.show_config()
import fusedops.torch
"""
# Like a script in another folder: it imports from the path, not from the current folder.
ELSEWHERE = "import sys; sys.path.remove('')\n" + SHOW
# The finder of setuptools's editable installs.
EDITABLE = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "fusedops":
            return importlib.util.spec_from_file_location(name, "{other}/__init__.py")

sys.meta_path.append(Finder)
"""


@pytest.mark.parametrize("code", [SHOW, ELSEWHERE, EDITABLE + SHOW], ids=["hidden", "in the folder", "editable"])
def test_another_copy_is_named(tmp_path, code):
    if loading.FRAMEWORKS["torch"].installed() is None:
        pytest.skip("not installed")
    this, other = (copy_without_libraries(tmp_path / name) for name in ("this", "other"))
    here, on_path = this, [this]
    if code is ELSEWHERE:
        here = other
    elif code is SHOW:
        on_path = [this, other]
    code = code.replace("{other}", str(other / "fusedops"))
    done = python(code, folder=here, PYTHONPATH=os.pathsep.join(map(str, on_path)))
    assert f" in {this / 'fusedops'}\nanother one," in done.stdout
    named = re.findall(r"^another one, which is not the one imported, in (.*)$", done.stdout, re.M)
    expected = {str(other / "fusedops")}
    # The tests may import from an installed wheel, which is listed as well.
    assert len(named) == len(set(named)) and expected <= set(named) <= expected | {str(loading.PACKAGE)}
    note = f". This is the fusedops in {this / 'fusedops'}; another one is in {', '.join(named)}. {RUN['torch']}"
    assert done.stderr.strip().endswith(note)


TORCH = """
import sys, fusedops.torch, torch
assert fusedops.torch.add(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
assert {"convert", "nn"} < set(dir(fusedops.torch)), "and on first use they are imported:"
assert not {"fusedops.torch.conversion", "fusedops.torch.nn", "transformers"} & set(sys.modules)
"""
TF = """
import sys, fusedops.tf, tensorflow
assert fusedops.tf.add(tensorflow.ones(2), tensorflow.ones(2)).numpy().tolist() == [2, 2]
assert "keras" in dir(fusedops.tf), "and on first use it is imported:"
assert "fusedops.tf.keras" not in sys.modules
"""


JAX = """
import sys, fusedops.jax, jax
assert fusedops.jax.add(jax.numpy.ones(2), jax.numpy.ones(2)).tolist() == [2, 2]
assert {"load", "nnx", "optim"} < set(dir(fusedops.jax)), "and on first use they are imported:"
assert not {"flax", "optax"} & set(sys.modules)
"""


@pytest.mark.parametrize(
    "code, frameworks",
    [
        (TORCH + "assert 'tensorflow' not in sys.modules" + TF, ("torch", "tf")),
        (TF + "assert 'torch' not in sys.modules" + TORCH, ("torch", "tf")),
        (JAX + "assert not {'torch', 'tensorflow'} & set(sys.modules)" + TORCH + TF, ("torch", "tf", "jax")),
    ],
    ids=["torch first", "TensorFlow first", "JAX first"],
)
def test_each_binding_imports_its_own_framework_only_and_all_live_in_one_process(code, frameworks):
    for name in frameworks:
        if loading.FRAMEWORKS[name].installed() is None:
            pytest.skip(f"{loading.FRAMEWORKS[name].title} is not installed")
    done = python(code, is_new=True)
    assert done.returncode == 0, done.stderr


def test_fusedops_alone_imports_no_framework():
    code = "import sys, fusedops; fusedops.show_config(); assert not {'torch', 'tensorflow', 'jax'} & set(sys.modules)"
    done = python(code, is_new=True)
    assert done.returncode == 0, done.stderr


def test_the_core_includes_no_framework():
    framework = re.compile(r'#\s*include\s*[<"](torch|ATen|c10|tensorflow|xla|absl|Eigen|Python\.h|pybind11)')
    files = [path for path in (ROOT / "core_cuda").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if framework.search(path.read_text())]


def test_make_alone_prints_the_targets():
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for target in (
        "build",
        "build-torch",
        "build-tf",
        "wheel",
        "test",
        "test-all",
        "test-compat",
        "demo",
        "bench",
        "format",
        "clean",
    ):
        assert f"make {target} " in done.stdout
    for option in ("PYTHON=", "FUSEDOPS_CUDA_ARCHS=", "DEBUG=1", "CUDA=0"):
        assert option in done.stdout


def test_ci_runs_what_the_guide_says():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert workflow.count("run: .ci/run") == 2  # with and without a GPU
    for file in ("CONTRIBUTING.md", ".ci/run", ".github/workflows/ci.yml"):
        assert "test-all" in (ROOT / file).read_text(), file
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", workflow + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.M), target


TOOLKIT = cuda.Toolkit(ROOT, "13.0", ROOT, frozenset({"75", "80", "86", "87", "90", "120"}))


@pytest.fixture
def chosen(monkeypatch):
    def chosen(gpus=(), **variables):
        for variable in ("FUSEDOPS_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"):
            monkeypatch.setenv(variable, variables.get(variable, ""))
        return choose(Options.from_environment(), TOOLKIT, lambda: list(gpus))

    return chosen


@pytest.mark.parametrize(
    "requested, found",
    [
        ("8.0;9.0+PTX", ["8.0", "9.0+PTX"]),
        ("80 sm_90", ["8.0", "9.0"]),
        ("9.0a,12.0", ["9.0a", "12.0"]),
        ("Ampere;9.0", ["8.0", "8.6+PTX", "9.0"]),
    ],
)
def test_architectures(chosen, requested, found):
    assert [str(a) for a in chosen(FUSEDOPS_CUDA_ARCHS=requested).architectures] == found
    assert [str(a) for a in chosen(TORCH_CUDA_ARCH_LIST=requested).architectures] == found


@pytest.mark.parametrize(
    "requested, got",
    [
        ("9.0;fast", "'fast' (no compute capability)"),
        ("7.5 9.0", "'7.5' (older than 8.0)"),
        ("Turing;9.0", "'7.5+PTX' of Turing (older than 8.0)"),
        ("9.0;99.0", "'99.0' (unknown to CUDA 13.0)"),
    ],
)
def test_an_unsupported_architecture_requested_by_name_is_an_error(chosen, requested, got):
    with pytest.raises(BuildError, match=rf"FUSEDOPS_CUDA_ARCHS must list compute capabilities.*got {re.escape(got)}$"):
        chosen(FUSEDOPS_CUDA_ARCHS=requested)


@pytest.mark.parametrize(
    "inherited, found, left_out",
    [
        ("7.0;7.5;8.0+PTX", ["8.0+PTX"], "'7.0' (older than 8.0), '7.5' (older than 8.0)"),
        ("Turing;Ampere", ["8.0", "8.6+PTX"], "'7.5+PTX' of Turing (older than 8.0)"),
        ("Kepler+Tesla Ampere+Tegra", ["8.7"], "'3.7' of Kepler+Tesla (older than 8.0)"),
        ("Rubin 9.0", ["9.0"], "'Rubin' (no compute capability)"),
        ("8.0 99.0+PTX", ["8.0"], "'99.0+PTX' (unknown to CUDA 13.0)"),
    ],
)
def test_an_unsupported_architecture_for_all_extensions_is_left_out(chosen, inherited, found, left_out):
    choice = chosen(TORCH_CUDA_ARCH_LIST=inherited, gpus=["12.0"])
    assert [str(a) for a in choice.architectures] == found
    assert choice.left_out == f"left out of TORCH_CUDA_ARCH_LIST: {left_out}"


@pytest.mark.parametrize(
    "names", ["Kepler+Tesla", "Kepler", "Maxwell+Tegra", "Maxwell", "Pascal", "Volta+Tegra", "Volta", "Turing"]
)
def test_no_requested_architecture_is_supported(chosen, names):
    with pytest.raises(
        NoCudaError, match=rf"nothing is left of TORCH_CUDA_ARCH_LIST without .* of {re.escape(names)} "
    ):
        chosen(TORCH_CUDA_ARCH_LIST=names)


def test_old_gpus_are_left_out(chosen):
    choice = chosen(gpus=["7.5", "9.0"])
    assert [str(a) for a in choice.architectures] == ["9.0"]
    assert choice.left_out == "left out of the GPUs here: '7.5' (older than 8.0)"
    with pytest.raises(NoCudaError, match=r"nothing is left of the GPUs here without '7\.5' \(older than 8\.0\)$"):
        chosen(gpus=["7.5"])


def test_present_gpus_determine_the_default_architectures(chosen):
    assert [str(a) for a in chosen(TORCH_CUDA_ARCH_LIST="native", gpus=["8.6"]).architectures] == ["8.6"]
    assert [str(a) for a in chosen(FUSEDOPS_CUDA_ARCHS="9.0", gpus=["8.6"]).architectures] == ["9.0"]
    with pytest.raises(NoCudaError, match="no GPU was found"):
        chosen()


def test_left_out_architectures_are_announced(chosen):
    choice = chosen(gpus=["7.5", "9.0"])
    found = Cuda(TOOLKIT, choice.architectures, cuda.Cutlass(ROOT, "1"), choice.left_out)
    assert announcement(found, None).splitlines() == [
        "fusedops: building for the CPU and, with CUDA 13.0, for GPUs of compute capability 9.0",
        "fusedops: left out of the GPUs here: '7.5' (older than 8.0)",
    ]


def test_the_reason_for_a_build_without_kernels_names_the_command(monkeypatch, tmp_path):
    """Without a GPU, kernels are compiled only on request by a variable."""
    for variable in ("FUSEDOPS_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(core, "find_toolkit", lambda options: TOOLKIT)
    monkeypatch.setattr(core, "find_cutlass", lambda: None)
    with pytest.raises(NoCudaError, match=r"^no GPU was found \(.*: FUSEDOPS_CUDA_ARCHS=9\.0 make build\)$") as error:
        Cuda.find(Options.from_environment(), list)
    assert announcement(None, str(error.value)).endswith(str(error.value))
    monkeypatch.setenv("FUSEDOPS_CUDA_ARCHS", "9.0")
    assert Cuda.find(Options.from_environment(), list).architectures


@pytest.mark.parametrize(
    "cxx, words, compiler, flags",
    [
        ("", ["g++"], "g++", []),
        ("g++ -m64 -pipe", ["g++", "-m64", "-pipe"], "g++", ["-m64", "-pipe"]),
        ("ccache g++", ["ccache", "g++"], "g++", []),
        ("/usr/bin/ccache clang++ -m64", ["/usr/bin/ccache", "clang++", "-m64"], "clang++", ["-m64"]),
        ("ccache", ["ccache"], "ccache", []),
        ("'a folder/g++' -m64", ["a folder/g++", "-m64"], "a folder/g++", ["-m64"]),
        ("a folder/g++", ["a folder/g++"], "a folder/g++", []),
    ],
)
def test_the_compiler_that_nvcc_calls(tmp_path, monkeypatch, cxx, words, compiler, flags):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options_module.shutil, "which", lambda name: None)
    Path("a folder").mkdir()
    Path("a folder/g++").touch()
    monkeypatch.setenv("CXX", cxx)
    options = Options.from_environment()
    assert options.cxx == words
    ninja = NinjaFile(options.folder)
    (tmp_path / "core_cuda").mkdir()
    add_core(ninja, options, Cuda(TOOLKIT, [Architecture("90", ptx=False)], cuda.Cutlass(ROOT, "1")))
    command = shlex.split(re.search(r"rule core_cu\n  command = (.*)", ninja.write().read_text())[1])
    assert command[command.index("-ccbin") + 1] == compiler
    given = command[command.index("-Xcompiler") + 1].split(",")
    assert given[: len(flags)] == flags and set(flags).isdisjoint(given[len(flags) :])


@pytest.mark.parametrize(
    "installed, command, expected",
    [
        ((), ["g++"], ["g++"]),
        (("ccache",), ["g++", "-m64"], ["/bin/ccache", "g++", "-m64"]),
        (("sccache",), ["nvcc"], ["/bin/sccache", "nvcc"]),
        (("ccache", "sccache"), ["nvcc"], ["/bin/ccache", "nvcc"]),
        (("ccache",), ["sccache", "g++"], ["sccache", "g++"]),
        (("ccache",), ["/usr/bin/distcc", "g++"], ["/usr/bin/distcc", "g++"]),
    ],
)
def test_a_compiler_cache_is_used_if_installed(tmp_path, monkeypatch, installed, command, expected):
    monkeypatch.setattr(options_module.shutil, "which", lambda name: f"/bin/{name}" if name in installed else None)
    assert options_module.cached(command) == expected
    ninja = NinjaFile(Path("build"), tmp_path)
    ninja.rule("compile", command, description="c++", headers=True)
    ninja.rule("link", command, description="link")
    commands = re.findall(r"command = (.*)", (tmp_path / ninja.write()).read_text())
    assert commands[0].startswith(" ".join(expected)) and commands[1] == " ".join(command)


def test_a_step_is_shown_when_it_begins_and_when_it_ends(tmp_path):
    """While the first of two steps runs, it is shown as running; compilers' output is returned and not shown."""
    ninja = NinjaFile(Path("build"), tmp_path)
    ninja.rule("make", ["sh", "-c", 'echo a warning; cp "$0" "$1"', "$in", "$out"], description="make $out")
    (tmp_path / "source").touch()
    first = ninja.build(Path("first"), "make", [Path("source")])
    ninja.build(Path("second"), "make", [first])
    shown = []
    warnings = ninja.run(1, show=lambda *step: shown.append((*step[:3], list(step[3]))))
    assert shown == [
        (0, 2, "make first", ["make first"]),
        (1, 2, "", []),
        (1, 2, "make second", ["make second"]),
        (2, 2, "", []),
    ]
    assert warnings.splitlines() == ["a warning", "a warning"]
    assert ninja.run(1, show=lambda *step: shown.append(step)) == "" and len(shown) == 4


def test_the_output_of_a_compiler_that_fails(tmp_path):
    ninja = NinjaFile(Path("build"), tmp_path)
    ninja.rule("make", ["sh", "-c", "echo the error; exit 1"], description="make $out")
    (tmp_path / "source").touch()
    ninja.build(Path("first"), "make", [Path("source")])
    with pytest.raises(BuildError, match=rf"(?s)^the compiler failed in {re.escape(str(tmp_path))}\n.*\nthe error$"):
        ninja.run(1, show=silent)


def test_architecture_flags():
    assert Architecture("90", ptx=True).flags == [
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]


def test_torch_compiles_with_all_words_of_cxx(tmp_path):
    if loading.FRAMEWORKS["torch"].installed() is None:
        pytest.skip("not installed")
    folder = tmp_path / "with a space"
    for name, text in {
        "torch_binding/binding.cpp": "static_assert(GIVEN == 3);",
        "torch_binding/exports.map": "{};",
        "core_cuda/core.cpp": "",
        "ccache": '#!/bin/sh\nexec "$@"\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "ccache").chmod(0o755)
    subprocess.run(["g++", "-fPIC", "-c", "core_cuda/core.cpp", "-o", "core.o"], cwd=folder, check=True)
    (folder / "build").mkdir()
    command = [
        "fusedops.building.torch_extension",
        "build",
        "--torch",
        "2.13.0",
        "--objects",
        "core.o",
        "--flags",
        "-O0",
    ]
    environment = os.environ | {"CXX": f"'{folder}/ccache' g++ -DGIVEN=3", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, check=True)
    assert (folder / "build/lib/fusedops/torch/_C.abi3.so").exists()


@pytest.fixture
def autograd_of(tmp_path, monkeypatch):
    """A function that builds torch_autograd/, one file with this text, against headers of this torch version."""
    folder = tmp_path / "with a space"
    (folder / "torch_autograd").mkdir(parents=True)
    monkeypatch.chdir(folder)
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", "_C.abi3.so"], check=True)
    options = dataclasses.replace(Options.from_environment(), debug=True, cpu_flags="")

    def build_for(text, *versions):
        (folder / "torch_autograd/node.cpp").write_text(text)
        torches = [folder / version / "torch" for version in versions]
        for torch in torches:
            (torch / "include").mkdir(parents=True)
            (torch / "include/version.h").write_text(f"#define VERSION {torch.parent.name}")
            (torch / "version.py").write_text(f"__version__ = '{torch.parent.name}.0+cpu'\n")
        made = build_autograd(NinjaFile(options.folder), options, torches, Path("_C.abi3.so"), silent, print)
        return [library.name for library in made]

    return build_for


def test_autograd_is_built_for_every_torch_whose_headers_are_given(autograd_of):
    text = "#include <version.h>\nstatic_assert(VERSION > 2);"
    assert sorted(autograd_of(text, "2.13", "2.12")) == ["_autograd.torch2.12.so", "_autograd.torch2.13.so"]


def test_autograd_that_does_not_compile_is_left_out(autograd_of, capfd):
    text = "#include <version.h>\nstatic_assert(VERSION < 2.14);"
    assert autograd_of(text, "2.16", "2.13") == ["_autograd.torch2.13.so"]
    assert "fusedops: _autograd.torch2.16.so is left out: the compiler failed in " in capfd.readouterr().out


def test_files_that_a_change_rebuilds(tmp_path, monkeypatch):
    folder = tmp_path / "with a space"
    shutil.copytree(ROOT / "core_cuda", folder / "core_cuda")
    monkeypatch.chdir(folder)
    options = dataclasses.replace(Options.from_environment(), debug=False, cpu_flags="")
    target = "build/release/core_cuda/core/declaration/view.cpp.o"

    def ninja(options, *arguments):
        file = NinjaFile(options.folder)
        add_core(file, options, None)
        begun = []
        file.run(1, *arguments, target, show=lambda done, steps, what, running: begun.append(what))
        return [what for what in begun if what]

    compiled = ["c++ core_cuda/core/declaration/view.cpp"]
    assert ninja(options) == compiled
    assert ninja(options, "-n") == []

    os.utime("core_cuda/core/declaration/rule.h")
    os.utime("core_cuda/core/declaration/dtype.h")
    assert ninja(options, "-n") == compiled, "a header that it includes was touched"
    assert ninja(options) == compiled
    os.utime("core_cuda/core/cpu/elementwise.h")
    assert ninja(options, "-n") == [], "a header that it does not include was touched"

    assert ninja(dataclasses.replace(options, cpu_flags="-mtune=generic"), "-n") == compiled, "a flag changed"


def test_flags_for_nvcc_are_part_of_its_command(monkeypatch):
    """Otherwise objects compiled with other flags would count as up to date."""
    monkeypatch.setenv("FUSEDOPS_CUDA_FLAGS", "-lineinfo --Ofast-compile=max")
    command = core.nvcc(Options.from_environment(), cuda.Toolkit(Path("/cuda"), "13.0", Path("/cudart")))
    assert command[-2:] == ["-lineinfo", "--Ofast-compile=max"]
