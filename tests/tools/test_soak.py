"""The soak: its calls, its failures as runnable programs, and the end of a run."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import os
import re
import signal
import sys
from collections import Counter

import numpy as np
import pytest

from tests.helpers.frameworks import installed
from tests.helpers.running import ROOT, run

pytest.importorskip("rich")


from rich.console import Console

import soak.__main__
from soak import crew, program, report, running, worker
from soak.__main__ import _Show
from soak.call import build
from soak.plan import COMPILED, NAMED, SIZES, WAYS, Plan, draw
from soak.shrink import shrunk
from soak.worker import Order, Report, Sample

FRAMEWORKS = [name for name in WAYS if installed(name)]
EAGER = [(framework, way) for framework in FRAMEWORKS for way in WAYS[framework] if way not in COMPILED]


def plan(framework: str, way: str, operator: str = "rms_norm", **choices) -> Plan:
    options = {
        "number": 1,
        "dtype": "float64",
        "wide_parameters": False,
        "shape": (2, 3, 5),
        "sample_index": 0,
        "any_options": True,
        "any_layout": way != "jvp",
        "some_gradients": False,
        "threads": 2,
        "is_cross_checked": True,
    }
    return Plan(seed=1, framework=framework, device="cpu", operator=operator, way=way, **{**options, **choices})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_calls(framework):
    """Some calls of each framework, compared with another one."""
    plans = (draw(1, number) for number in itertools.count())
    quick = (plan for plan in plans if plan.key[:2] == (framework, "cpu") and plan.way in ("forward", "backward"))
    for one in itertools.islice(quick, 8 if framework == "jax" else 30):  # JAX compiles each call
        failure = running.attempt(one)
        assert failure is None, f"{one}: {failure.sentence}\n{failure.program}"


def test_compiled_calls_are_of_few_kinds():
    """Each operator is compiled once: its dtype and options follow from the seed."""
    kinds = collections.defaultdict(set)
    for number in range(6000):
        one = draw(3, number)
        if one.way in COMPILED:
            kinds[one.operator].add((one.dtype, one.any_options, one.any_layout, one.some_gradients, one.threads))
    assert all(len(found) == 1 for found in kinds.values()) and kinds


def test_a_call_is_determined_by_its_seed_and_number():
    for number in range(50):
        first, second = (build(draw(5, number)) for _ in range(2))
        assert first.plan == second.plan != draw(6, number)
        for name, x in first.tensors.items():
            again = second.tensors[name]
            assert (x.shape, x.strides, x.offset) == (again.shape, again.strides, again.offset)
            assert x.memory.tobytes() == again.memory.tobytes()


def test_plans_cover_all_operators_and_options():
    plans = [draw(1, number) for number in range(2000)]
    calls = [build(plan) for plan in plans[:300]]
    tensors = [x for call in calls for x in call.tensors.values() if x.memory.size]
    assert {plan.key[:2] for plan in plans} == {(f, d) for f in WAYS for d in ("cpu", "cuda")}
    assert {plan.dtype for plan in plans} == {"float64", "float32", "float16", "bfloat16"}
    assert {plan.threads for plan in plans} == {1, 2, 3, 4} and any(plan.wide_parameters for plan in plans)
    assert any(x.offset for x in tensors) and any(0 in x.strides for x in tensors)
    assert any(x.strides != tuple(sorted(x.strides)[::-1]) for x in tensors)
    assert max(np.prod(plan.shape) for plan in plans if plan.shape) > 2 * min(SIZES)
    assert any(0 in plan.shape for plan in plans if plan.shape)


@pytest.mark.parametrize(("framework", "way"), EAGER)
def test_program_of_a_wrong_value(framework, way, monkeypatch):
    """With a wrong reference, the printed program runs on its own and fails at its last line."""
    for number in range(4):
        assert running.attempt(plan(framework, way, number=number)) is None
    norm = type(NAMED["rms_norm"])
    for name in ("reference", "gradients"):
        monkeypatch.setattr(norm, name, wrong(getattr(norm, name)))
    failure = running.attempt(plan(framework, way))
    assert failure and failure.kind == "value"
    *_, last = failure.program.splitlines()
    assert last.startswith("assert ") and "import soak" not in failure.program
    with pytest.raises(AssertionError):
        exec(failure.program, {})


def wrong(function):
    def twice(*arguments, **named):
        found = function(*arguments, **named)
        return {name: 2 * x for name, x in found.items()} if isinstance(found, dict) else 2 * found

    return twice


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_program_of_a_call_that_raises(framework, monkeypatch):
    sample = NAMED["rms_norm"].sample((2, 4), np.random.default_rng(0))
    bad = type(sample)({**sample.inputs, "weight": np.ones(4)}, {"eps": "1"})
    monkeypatch.setattr(type(NAMED["rms_norm"]), "draw", lambda *_: bad)
    failure = running.attempt(plan(framework, "backward"))
    assert failure and "eps must be a number" in failure.sentence
    with pytest.raises(Exception, match="eps must be a number"):
        exec(failure.program, {})


@pytest.mark.parametrize("other", [name for name in FRAMEWORKS if name != "torch"])
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (9, 40)], ids=str)
def test_programs_of_bits(dtype, shape, other, tmp_path, monkeypatch):
    """The programs compare the same call twice, and two frameworks; large ones read a file. Here nothing differs."""
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    call = build(plan("torch", "backward", dtype=dtype, shape=shape))
    exec(program.repetition_program(call), {})
    parity = program.parity_program(call, {"torch": "backward", other: "backward"}, len(call.expected))
    exec(parity, {})
    assert ("np.load" in parity) == (shape == (9, 40))


@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_a_failure_is_made_simpler(monkeypatch, tmp_path):
    """Reduced to one row, forward and contiguous; the resulting program runs on its own."""
    norm = type(NAMED["rms_norm"])
    monkeypatch.setattr(norm, "reference", wrong(norm.reference))
    large = plan("torch", "backward", dtype="float32", shape=(3, 4, 2, 40))
    failure = shrunk(running.attempt(large, compare=False), lambda plan: running.attempt(plan, compare=False))
    simplest = failure.plan
    assert (simplest.way, simplest.shape, simplest.any_layout, simplest.threads) == ("forward", (1,), False, 1)
    assert len(failure.program.splitlines()) <= 10
    done = run("-c", failure.program, cwd=ROOT)
    assert done.returncode == 1 and "AssertionError" in done.stderr


def order(**choices) -> Order:
    options = {"frameworks": ("torch",), "devices": ("cpu",), "operators": (), "ways": ("forward", "backward")}
    return Order(**{"seed": 1, "calls": None, "seconds": None, **options, **choices})


@pytest.mark.slow
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_a_process_that_dies_is_replaced():
    """Its call is reported, and the others are made."""
    killed: list[int | None] = []

    def kill(reports: list[Report]) -> None:
        if not killed and reports[0].count:
            (child,) = multiprocessing.active_children()
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGSEGV)

    reports = crew.run(order(calls=1000), 1, kill, lambda: False)
    ((key, text),) = [failure for one in reports for failure in one.failures]
    assert key[:2] == ("torch", "cpu") and "its process ended with status -11" in text
    assert "import torch" in text and "Fatal Python error: Segmentation fault" in text
    assert report.total(reports).total() == 1000 and reports[-1].done


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_without_possible_calls_ends(processes):
    """The run ends with a message if no call is possible."""
    done = run(
        "-m", "soak", "--calls", "3", "--processes", processes, "--framework", "torch", "--way", "graph", cwd=ROOT
    )
    assert done.returncode == 1
    assert "Nothing was called" in done.stdout + done.stderr


def test_interrupt():
    """The first interrupt ends the run with its summary; the second ends it at once."""
    with _Show(Console(quiet=True), order()) as showing:
        os.kill(os.getpid(), signal.SIGINT)
        assert showing.stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("growth", "judged"), [(0, True), (10_000, True), (10_000, False)])
def test_growing_memory_is_reported(growth, judged):
    """It is a problem of eager calls, but not under a tool that tracks memory."""
    memory = [Sample(calls, 2**30 + growth * calls, {"torch": growth * calls}) for calls in range(0, 100_001, 1000)]
    one = Report(Counter({("torch", "cuda", "forward", "relu"): 100_000}), memory=memory, done=True)
    found = report.problems([one], judged)
    assert len(found) == (2 if growth and judged else 0)
    assert all(re.match(r"Memory \(.*\) grew from .* after 60000 calls", text) for text in found)


@pytest.mark.parametrize(
    ("options", "judged"),
    [(["--eager"], True), (["--eager", "--trace"], False), ([], False)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_when_memory_is_judged(options, judged, monkeypatch):
    """The exit status of a run whose memory has grown by 100 KB per call."""
    memory = [Sample(calls, 100_000 * calls, {}) for calls in range(0, 10_001, 1000)]
    grown = Report(Counter({("torch", "cpu", "forward", "relu"): 10_000}), memory=memory, done=True)
    monkeypatch.setattr(soak.__main__, "prepare", lambda order: [])
    monkeypatch.setattr(soak.__main__, "work", lambda *_: grown)
    monkeypatch.setattr(sys, "argv", ["soak", "--processes", "1", *options])
    with pytest.raises(SystemExit) as done:
        soak.__main__.main()
    assert done.value.code == (1 if judged else 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_eager_calls_leak_no_memory(framework):
    """Memory is judged by eager calls."""
    every, eager = (order(frameworks=(framework,), ways=(), eager=eager) for eager in (False, True))
    plans = [plan(framework, way) for way in WAYS[framework]]
    left = {one.way for one in plans if every.has(one) and not eager.has(one)}
    assert left == {"torch": {"compiled"}, "tf": {"graph", "XLA", "jvp"}, "jax": {*WAYS["jax"]}}[framework]


@pytest.mark.skipif("tf" not in FRAMEWORKS, reason="TensorFlow is not installed")
def test_caches_of_tensorflow_are_not_measured():
    """Its zeros, numbers and kernels, in an eager run."""
    context = pytest.importorskip("tensorflow.python.eager.context").context()
    assert running.attempt(plan("tf", "backward")) is None
    context.zeros_cache().put("a key", running.side("tf", "cpu").tf.zeros(3))
    worker._memory(order(frameworks=("tf",), eager=True), 1)
    assert context.zeros_cache().get("a key") is None


def test_names_on_the_page_exist():
    page = (ROOT / "docs" / "testing.md").read_text()
    for file in re.findall(r"`(?:tests/)?([\w/]+\.py)`", page):
        assert (ROOT / "tests" / file).is_file(), file
    programs = "".join((ROOT / folder / "__main__.py").read_text() for folder in ("soak", "audits/families"))
    for option in re.findall(r"--(?!tool|kernel|error)[a-z][a-z-]+", page):
        assert f'"{option}"' in programs, option


@pytest.mark.slow
@pytest.mark.skipif("torch" not in FRAMEWORKS, reason="torch is not installed")
def test_command_line():
    options = ["--calls", "20", "--processes", "1", "--framework", "torch", "--device", "cpu", "--eager"]
    done = run("-m", "soak", *options, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("20 calls in ", "| way ", "| operator ", "| process "):
        assert line in done.stdout
