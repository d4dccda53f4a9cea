"""Test cases: every operator on every framework and device that is present. Tests of missing ones are skipped and
counted."""

from __future__ import annotations

import gc
import importlib.util
import os
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The frameworks share the GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")  # for sharded calls

pytest_plugins = ["tests.helpers.workers"]

import hypothesis  # noqa: E402

from tests.helpers.frameworks import BOTH, DEVICES, FRAMEWORKS, PACKAGES, Backend, backend, installed  # noqa: E402
from tests.helpers.numerics import DTYPES  # noqa: E402
from tests.specifications import SPECIFICATIONS  # noqa: E402

# The same examples on every run: a failure is caused by a change, not by chance.
hypothesis.settings.register_profile("fusedops", derandomize=True, deadline=None, max_examples=20, database=None)
hypothesis.settings.load_profile("fusedops")

skipped: Counter[str] = Counter()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = metafunc.fixturenames
    only = metafunc.definition.get_closest_marker("frameworks")
    default = FRAMEWORKS if metafunc.definition.path.parent.name in OF_ALL_FRAMEWORKS else BOTH
    frameworks = only.args if only else default
    pairs = [(framework, device) for framework in frameworks for device in DEVICES]
    # On a CPU the bits of the others equal PyTorch's (generic/test_parity.py).
    by_torch = [(framework, "cpu") for framework in FRAMEWORKS[1:]] if installed("torch") else []
    if "package" in names:
        metafunc.parametrize("package", frameworks, indirect=True)
    for fixture, cases in {
        "any_backend": pairs,
        "reference_backend": [pair for pair in pairs if pair not in by_torch],
        "any_gpu": [pair for pair in pairs if pair[1] == "cuda"],
        "both_backends": [pair for pair in pairs if pair[0] != "torch"],
        "torch_backend": [("torch", device) for device in DEVICES],
        "tf_backend": [("tf", device) for device in DEVICES],
        "jax_backend": [("jax", device) for device in DEVICES],
        "jax_cpu": [("jax", "cpu")],
        "torch_cpu": [("torch", "cpu")],
        "tf_cpu": [("tf", "cpu")],
        "torch_gpu": [("torch", "cuda")],
        "tf_gpu": [("tf", "cuda")],
    }.items():
        if fixture in names:
            given = cases if "jax" in fixture else [*map(_slow, cases)]  # tests/jax has the quick tests of JAX
            metafunc.parametrize(fixture, given, indirect=True, ids=["-".join(pair) for pair in cases])
    if "device" in names:
        metafunc.parametrize("device", DEVICES)
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "spec" in names and "spec" not in chosen:
        metafunc.parametrize("spec", [*map(_of_specification, SPECIFICATIONS)], ids=str)
    if "dtype" in names and "dtype" not in chosen:
        metafunc.parametrize("dtype", DTYPES)


def _slow(pair: tuple[str, str]) -> Any:
    """The case of a backend; on a CPU those of JAX are slow, since XLA compiles each call."""
    return pytest.param(pair, marks=pytest.mark.slow) if pair == ("jax", "cpu") else pair


def _of_specification(spec: Any) -> Any:
    """A function with a further result is slow: its kernels are those of the function without, which is quick."""
    return spec if spec.function == spec.name else pytest.param(spec, marks=pytest.mark.slow)


OF_ALL_FRAMEWORKS = ("custom", "generic", "jax", "operators")  # folders
OF_VALUES = ("test_parity.py", "test_reference.py", "test_special_values.py")


@pytest.hookimpl(trylast=True)  # after -k and -m, so that one skip remains of the selected cases
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes suites that a specification does not need, and repeated skips. Tests that run alone come last: before
    each of them, every process waits for the slowest test of the others."""

    def parameters_of(item: pytest.Item) -> dict[str, Any]:
        return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}

    def is_needed(item: pytest.Item) -> bool:
        parameters = parameters_of(item)
        specs = [parameters[name] for name in ("spec", "operator") if name in parameters]
        return item.path.name in OF_VALUES or not any(getattr(x, "value_suites_only", False) for x in specs)

    skipped_tests = set[str]()

    def is_only_skipped(item: pytest.Item) -> bool:
        """True for every case of a test on a missing device except the first: thousands of skips take minutes."""
        if not any(map(is_missing, parameters_of(item).values())):
            return False
        test = item.nodeid.partition("[")[0]
        is_repeated = test in skipped_tests
        skipped_tests.add(test)
        return is_repeated

    left_out = [item for item in items if not is_needed(item) or is_only_skipped(item)]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    items.sort(key=lambda item: "alone" in getattr(item, "fixturenames", ()))


def is_missing(parameter: object) -> bool:
    """True for "cuda", or for a pair of a framework and "cuda", if no framework here has a GPU, and for "jax" or such a
    pair if it is not installed."""
    is_pair = isinstance(parameter, tuple) and len(parameter) == 2 and all(isinstance(x, str) for x in parameter)
    framework, device = parameter if is_pair else (parameter, parameter)
    if not isinstance(device, str):  # any other parameter, such as an array
        return False
    return (framework == "jax" and not installed("jax")) or (device == "cuda" and not has_gpu())


@cache
def has_gpu() -> bool:
    return any(isinstance(backend(framework, "cuda"), Backend) for framework in FRAMEWORKS)


def require(framework: str, device: str) -> Backend:
    """The backend, or a skip that the summary counts."""
    found = backend(framework, device)
    if isinstance(found, str):
        pytest.skip(f"GPU: {found}" if device == "cuda" and installed(framework) else found)
    return found


@pytest.fixture
def any_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The whole test runs on its device: TensorFlow would place anything unplaced on a GPU."""
    found = require(*request.param)
    with found.place:
        yield found


@pytest.fixture
def package(request: pytest.FixtureRequest) -> Any:
    """The public packages: fusedops.torch, fusedops.tf, fusedops.jax."""
    return require(request.param, "cpu").functions


reference_backend = any_backend
any_gpu = torch_backend = tf_backend = jax_backend = jax_cpu = torch_cpu = tf_cpu = torch_gpu = tf_gpu = any_backend


@pytest.fixture
def both_backends(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, Backend]]:
    """PyTorch and another framework, on one device."""
    framework, device = request.param
    torch, other = require("torch", device), require(framework, device)
    with other.place:
        yield torch, other


@pytest.fixture
def keras(tf_backend: Backend) -> Iterator[Any]:
    """Keras, with the same random numbers for each test."""
    import keras

    from tests.helpers.keras_models import exact_products

    keras.utils.set_random_seed(0)
    with exact_products():
        yield keras


@pytest.fixture
def fk(keras: Any) -> Any:
    import fusedops.tf.keras as fk

    return fk


@pytest.fixture
def transformers(torch_backend: Backend) -> Iterator[Any]:
    """Hugging Face's transformers, whose models test `convert`. The models are small: more threads would only wait."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import transformers

    transformers.logging.set_verbosity_error()
    threads = torch_backend.torch.get_num_threads()
    torch_backend.torch.set_num_threads(1)
    yield transformers
    torch_backend.torch.set_num_threads(threads)


@pytest.fixture
def torch(torch_backend: Backend) -> Any:
    return torch_backend.torch


@pytest.fixture
def fo(torch_backend: Backend) -> Any:
    return torch_backend.functions


@pytest.fixture
def fnn(fo: Any) -> Any:
    return fo.nn


@pytest.fixture
def models(transformers: Any) -> Any:
    from tests.helpers import torch_models

    return torch_models


@pytest.fixture
def random(request: pytest.FixtureRequest) -> np.random.Generator:
    """A test's random numbers depend on neither the other tests nor the framework and device."""
    return np.random.default_rng(zlib.crc32(request.function.__qualname__.encode()))


@pytest.hookimpl(trylast=True)  # after the teardown of the file's fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between two files, exempts all objects from garbage collection. The frameworks' modules and the tests are
    millions of objects, and each collection would scan them."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skips a test that fills a GPU if the GPU is too small, or if other processes' caches leave too little memory."""
    try:
        return (yield)
    except RuntimeError as error:
        if "whole_gpu" in getattr(item, "fixturenames", ()) and type(error).__name__ == "OutOfMemoryError":
            pytest.skip("GPU: too little memory is free")
        raise


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in sorted(skipped):
        if reason.startswith("GPU: "):
            terminalreporter.write_line(f"{reason} here, {skipped[reason]} tests skipped")
    for package in (*PACKAGES.values(), "keras_hub", "transformers", "accelerate", "peft"):
        if importlib.util.find_spec(package) is None:
            count = skipped[f"{package} is not installed"]
            terminalreporter.write_line(f"{package}: not installed, {count} cases skipped")


def pytest_collection_finish() -> None:
    gc.freeze()
    if not any(map(installed, FRAMEWORKS)):
        raise pytest.UsageError("none of PyTorch, TensorFlow and JAX is installed: nothing would be tested")
