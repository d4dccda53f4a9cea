"""The benchmark: its command line, its output, hidden results, and the selection of entries."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.frameworks import Backend, installed
from tests.helpers.running import ROOT

pytest.importorskip("rich")


from rich.console import Console

from benchmarks import __main__ as command_line
from benchmarks import distributed
from benchmarks.__main__ import main
from benchmarks.cases import all_cases, attention
from benchmarks.cases.case import (
    BOTH,
    FIRST_USE,
    OPTIMIZERS,
    SECTIONS,
    STEPS,
    WEIGHTS,
    Case,
    attention_case,
    bandwidth_case,
    decoding,
    product,
)
from benchmarks.cases.products import LAYERS, PRODUCTS
from benchmarks.cases.selection import Selection, parse_shape
from benchmarks.guard.judging import RATIOS
from benchmarks.implementations import side_of
from benchmarks.measuring import contest, runner
from benchmarks.measuring.environment import environment
from benchmarks.measuring.timing import Effort, HostClock, Implementation
from benchmarks.operators import ELEMENTWISE, FLOAT8, OPERATORS, OVER_ROWS, layouts, models
from benchmarks.results import compare, report, schema

ATTENTIONS = {*attention.DECODING, *attention.KINDS, *attention.OPTIONS}  # some take seconds on a CPU
QUICK = Effort(round=0.0, total=0.0, min_rounds=3)


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "COLUMNS": "250"}
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a quick run over relu's calls, in the installed frameworks."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    done = bench("--quick", "--device", "cpu", "--op", "relu", "--section", "call", "--output", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def measured(any_backend: Backend) -> Callable[[Case], Any]:
    """Measures a case briefly."""
    side = side_of(any_backend.framework)
    return lambda case: contest.measured(side, case, QUICK, quick=True)


@pytest.fixture
def runs(results: Path) -> list[schema.Run]:
    return json.loads(results.read_text())


def test_a_run_writes_all_fields(runs):
    assert [run["framework"] for run in runs] == ["torch", "tf"]
    for run in runs:
        assert schema.Run.__required_keys__ <= run.keys()
        found = run["environment"]
        assert schema.Environment.__required_keys__ <= found.keys() <= schema.Environment.__annotations__.keys()
        if not run["results"]:
            assert not installed(run["framework"]) and run["notes"]
            continue
        assert {"seconds", "version", "build"} <= found.keys()
        assert {"fusedops", {"torch": "torch", "tf": "tensorflow"}[run["framework"]]} <= found["versions"].keys()
        for row in run["results"]:
            assert schema.Row.__required_keys__ <= row.keys() <= schema.Row.__annotations__.keys()
            assert (row["operator"], row["section"], row["shape"]) == ("relu", "call", [16])
            assert {"fusedops", "eager"} <= row["implementations"].keys()
            for implementation in row["implementations"].values():
                assert (
                    schema.Implementation.__required_keys__
                    <= implementation.keys()
                    <= schema.Implementation.__annotations__.keys()
                )
                assert implementation["problem"] is None and len(implementation["samples"]) >= 3


def test_equal_results_show_no_change(results):
    done = bench("--merge", results, "--compare", results)
    assert done.returncode == 0, done.stderr
    assert "0 of " in done.stdout and "Slower" not in done.stdout and "Faster" not in done.stdout


@pytest.mark.parametrize("times, title", [(5.0, "Slower than before"), (0.2, "Faster than before")])
def test_a_changed_entry_is_found(runs, tmp_path, times, title, capsys, monkeypatch):
    for row in runs[0]["results"]:  # as on an idle machine: a busy one's spread would hide any change
        ours = row["implementations"]["fusedops"]
        ours["samples"] = [1e-6] * len(ours["samples"])
    new = copy.deepcopy(runs)
    row = new[0]["results"][0]
    row["implementations"]["fusedops"]["samples"] = [x * times for x in row["implementations"]["fusedops"]["samples"]]
    (move,) = compare.moves(runs, new)
    assert (move.framework, move.key, move.implementation) == ("torch", row["key"], "fusedops")
    assert move.times == pytest.approx(times)

    before, now = tmp_path / "before.json", tmp_path / "now.json"
    before.write_text(json.dumps(runs))
    now.write_text(json.dumps(new))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--merge", str(now), "--compare", str(before)])
    main()
    shown = capsys.readouterr().out
    assert title in shown and row["key"] in shown


def test_a_change_within_the_spread_is_ignored(runs):
    for run in runs:
        for row in run["results"]:
            row["implementations"] = {
                "fusedops": {"work": 1.0, "problem": None, "samples": [1e-6, 1.2e-6, 1.4e-6, 1.6e-6]}
            }
    new = copy.deepcopy(runs)
    for run in new:
        for row in run["results"]:
            row["implementations"]["fusedops"]["samples"] = [
                x * 1.15 for x in row["implementations"]["fusedops"]["samples"]
            ]
    assert not compare.moves(runs, new)


def shown_as(row: dict[str, Any], framework: str) -> dict[str, str]:
    """Column -> the cell of this entry in the table, its lines joined."""
    console = Console(file=io.StringIO(), width=400)
    run = {"framework": framework, "environment": environment(), "results": [row], "notes": []}
    report.show(console, [run])
    lines = [line.strip("┃│").split("┃" if "┃" in line else "│") for line in console.file.getvalue().splitlines()]
    heading, *others = [[cell.strip() for cell in cells] for cells in lines if len(cells) > 2]
    return {name: " ".join(filter(None, cells)) for name, *cells in zip(heading, *others, strict=True)}


def test_the_table_shows_time_spread_and_memory():
    case = bandwidth_case("rows", "cuda", "relu", "forward", "float32", (8, 2**20))
    samples = [90e-6, 95e-6, 100e-6, 105e-6, 110e-6]
    ours = {"work": case.work, "problem": None, "samples": samples, "memory": 3 * 2**20}
    copied = {"work": case.work, "problem": None, "samples": [x / 2 for x in samples]}
    row = {"key": case.key, **asdict(case), "implementations": {"fusedops": ours, "copy": copied}}
    shown = shown_as(row, "torch")
    assert shown["fusedops"].startswith("100 µs ±5.0% 671.1 GB/s 3 MiB 2 × floor")
    assert shown["floor"] == "50 µs 1342 GB/s"


def test_a_wrong_result_shows_no_time(any_backend, measured, monkeypatch):
    implementations = f"benchmarks.implementations.{any_backend.framework}.side.public"
    monkeypatch.setattr(implementations, lambda package, case: lambda x: package.relu(x) + 1)
    section = "cpu" if any_backend.device == "cpu" else "stream"
    row = measured(bandwidth_case(section, any_backend.device, "relu", "forward", "float32", (64,)))
    ours, eager = row["implementations"]["fusedops"], row["implementations"]["eager"]
    assert "samples" not in ours and "memory" not in ours and ours["problem"].startswith("wrong: relative error")
    assert eager["problem"] is None and len(eager["samples"]) >= 3
    shown = shown_as(row, any_backend.framework)
    assert shown["fusedops"] == ours["problem"]
    assert "±" in shown["eager"]


def failing_from_the_third_call() -> Implementation:
    def call():
        calls.append(None)
        if len(calls) > 2:
            raise RuntimeError("\nan illegal memory access")

    calls: list[None] = []
    return Implementation(call, HostClock(), checked=False)


@pytest.fixture
def with_a_failing_baseline(any_backend, monkeypatch):
    side = side_of(any_backend.framework)
    implementations = side.implementations
    monkeypatch.setattr(
        side, "implementations", lambda *row: {"baseline": failing_from_the_third_call, **implementations(*row)}
    )
    return side


def test_an_implementation_that_fails_while_it_is_timed_is_left_out(any_backend, with_a_failing_baseline, measured):
    section = "cpu" if any_backend.device == "cpu" else "stream"
    row = measured(bandwidth_case(section, any_backend.device, "relu", "forward", "float32", (64,)))
    assert "problem" not in row
    assert row["implementations"]["baseline"] == {"work": 512.0, "problem": "RuntimeError: an illegal memory access"}
    assert len(row["implementations"]["fusedops"]["samples"]) >= 3


def test_another_process_measures_the_rest_after_a_crash(any_backend, with_a_failing_baseline, monkeypatch, tmp_path):
    path = tmp_path / "run.json"
    where = ("cpu", "cpu") if any_backend.device == "cpu" else ("stream", "cuda")
    rows = [bandwidth_case(*where, operator, "forward", "float32", (64,)) for operator in ("relu", "scale")]
    monkeypatch.setattr(runner, "_keep_freed_memory", lambda: None)  # for all later tests of this process

    def measure(**options: bool) -> tuple[bool, list[schema.Row]]:
        whole = runner.measure(any_backend.framework, any_backend.device, rows, True, path, **options)
        return whole, json.loads(path.read_text())["results"]

    for module in (contest, runner):
        monkeypatch.setattr(module, "is_usable", lambda side, device: False)
    whole, (row,) = measure()
    assert (
        not whole
        and row["implementations"]["baseline"]["crashed"]
        and "baseline has left the GPU unusable" in row["problem"]
    )

    for module in (contest, runner):
        monkeypatch.setattr(module, "is_usable", lambda side, device: True)
    whole, found = measure(resume=True)
    gc.unfreeze()
    assert whole and [row["operator"] for row in found] == ["relu", "scale"]
    assert not any("problem" in row for row in found)
    assert [row["implementations"]["baseline"].get("crashed") for row in found] == [True, None]
    assert all("samples" in row["implementations"]["fusedops"] for row in found)


@pytest.mark.parametrize(
    "statuses, problem",
    [
        ([75, 75, 0], None),  # a baseline makes the GPU unusable twice
        ([-9], "The process of torch ended with status -9: rows of it are missing"),
        ([75] * 21, "The process of torch ended with status 75: rows of it are missing"),
    ],
)
def test_processes_that_end_early(statuses, problem, tmp_path, monkeypatch):
    output, commands = tmp_path / "now.json", []

    def run(command, check):
        commands.append(command)
        part = Path(command[command.index("--json") + 1])
        part.write_text(json.dumps(written))
        return subprocess.CompletedProcess(command, statuses[len(commands) - 1])

    case = bandwidth_case("cpu", "cpu", "relu", "forward", "float32", (64,))
    row = {"key": case.key, **asdict(case), "implementations": {}}
    written = {"framework": "torch", "environment": environment(), "results": [row], "notes": []}
    arguments = ["--framework", "torch", "--device", "cpu", "--section", "cpu", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    monkeypatch.setattr(command_line.subprocess, "run", run)
    if problem:
        with pytest.raises(SystemExit, match=problem):
            main()
    else:
        main()
    assert ["--resume" in command for command in commands] == [False] + [True] * (len(statuses) - 1)
    (found,) = json.loads(output.read_text())
    assert found["results"] and found["notes"] == [problem] * bool(problem)
    assert list(tmp_path.iterdir()) == [output]


def test_a_time_counts_without_its_memory(any_backend, measured, monkeypatch):
    def memory(call):
        raise RuntimeError("out of memory")

    side = side_of(any_backend.framework)
    monkeypatch.setattr(side, "memory", memory)
    section = "cpu" if any_backend.device == "cpu" else "stream"
    row = measured(bandwidth_case(section, any_backend.device, "relu", "forward", "float32", (64,)))
    assert "problem" not in row
    assert all("samples" in x and "memory" not in x for x in row["implementations"].values())


@pytest.mark.parametrize("operator", [*ELEMENTWISE, *OVER_ROWS], ids=lambda operator: operator.name)
def test_calls_leave_no_tensor_behind(tf_cpu, operator):
    """Gradients that TensorFlow never frees fill a GPU within a run."""
    side = side_of("tf")

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(x), side.tf.Tensor) for x in gc.get_objects())

    case = bandwidth_case("cpu-rows", "cpu", operator.name, BOTH, "float32", operator.smallest)
    for function in (side.public(side.fo, case), side.formula(case)):
        call = side.call(case, function, side.inputs(case))
        call()
        before = tensors()
        for _ in range(3):
            call()
        assert tensors() == before


@pytest.mark.parametrize(
    "library, sentence",
    [
        (("QuACK", "json", 9), "QuACK is not compared: it needs compute capability 9.0, this GPU has 8.6"),
        (("Liger", "no_such_package", 8), "Liger is not compared: it is not installed (pip install 'fusedops[bench]')"),
        (("Liger", "json", 8), "Liger is not compared: RuntimeError: it does not fit"),
    ],
)
def test_a_library_that_cannot_be_compared_is_named_in_a_line(torch_cpu, monkeypatch, library, sentence):
    def functions(name, module):
        raise RuntimeError("it does not fit\nand here is why")

    libraries = importlib.import_module("benchmarks.implementations.torch.libraries")
    monkeypatch.setattr(libraries, "LIBRARIES", [(*library, "a.module")])
    monkeypatch.setattr(libraries, "FUNCTIONS", {})
    monkeypatch.setattr(libraries, "_functions", functions)
    monkeypatch.setattr(torch_cpu.torch.cuda, "get_device_capability", lambda: (8, 6))
    assert libraries.load() == [sentence] and not libraries.FUNCTIONS


def small_cases(device: str) -> list[Case]:
    """Every operator, forward and backward, in a section whose inputs may have any size."""
    section = "cpu-rows" if device == "cpu" else "rows"
    found = [
        bandwidth_case(section, device, operator.name, variant, "float32", operator.smallest)
        for operator in (*ELEMENTWISE, *OVER_ROWS)
        for variant in ("forward", BOTH)
    ]
    for operator, variants in (
        ("matmul", PRODUCTS),
        *((layer, ("forward", BOTH)) for layer in (*LAYERS, "grouped_matmul")),
    ):
        found += [product(section, device, x, "float32", (8, 16, 32), operator=operator) for x in variants]
    return found


def test_every_operator_is_measured(any_backend, measured):
    for case in small_cases(any_backend.device):
        if (any_backend.framework, case.operator, case.variant) == ("torch", "add", BOTH):
            continue  # torch's autograd passes the upstream gradient through: there is nothing to time
        row = measured(case)
        assert "problem" not in row, (case.key, row["problem"])
        expression = ["fusedops, expression"] * layouts.has_both(case)
        products = ["products"] * (case.is_layer and any_backend.framework == "torch")
        for name in ("fusedops", *expression, *products, "eager"):
            implementation = row["implementations"][name]
            assert implementation["problem"] is None, (case.key, name, implementation["problem"])
            assert ("memory" in implementation) == (any_backend.device == "cuda")
        assert row["flops"] > 0 and row["bytes"] > 0


def test_attention_is_measured(any_backend, measured):
    device, shape = any_backend.device, (1, 64, 2, 16)
    section = "attention-cpu" if device == "cpu" else "attention"
    in_torch = any_backend.framework == "torch"
    kinds = (*attention.KINDS, *(attention.OPTIONS if in_torch else ()))
    cases = [attention_case(section, device, kind, BOTH, "float32", shape) for kind in kinds]
    cases += [decoding(device, "float32", shape, operator=kind) for kind in attention.DECODING] * in_torch
    for case in cases:
        row = measured(case)
        assert "problem" not in row, (case.key, row["problem"])
        for name in ("fusedops", "eager", *(["without"] if case.operator in attention.OPTIONS else ())):
            implementation = row["implementations"][name]
            assert implementation["problem"] is None, (case.key, name, implementation["problem"])


def test_compiled_calls_of_jax_are_measured(jax_backend):
    """The kinds of entries that JAX has, beside XLA's own code; results are checked."""
    device = jax_backend.device
    shape, rows = (1, 64, 2, 16), "cpu-rows" if device == "cpu" else "rows"
    section = "attention-cpu" if device == "cpu" else "attention"
    optax = next(case for case in all_cases() if case.section == OPTIMIZERS and case.device == "cpu")
    for case in (
        bandwidth_case(rows, device, "rms_norm", "forward", "float32", (4, 16)),
        attention_case(section, device, "attention_causal", "backward", "float32", shape),
        product(rows, device, BOTH, "float32", (8, 16, 32), operator="linear_cross_entropy"),
        replace(optax, device=device, shape=(4, 2000)),
    ):
        row = contest.measured(side_of("jax"), case, QUICK, quick=False)
        assert "problem" not in row, (case.key, row["problem"])
        for name in ("fusedops", "XLA"):
            implementation = row["implementations"][name]
            assert implementation["problem"] is None, (case.key, name, implementation["problem"])


def test_first_uses(any_backend, measured):
    """Every call creates another operator; on a GPU another process may have compiled it."""
    cases = [case for case in all_cases() if case.section == FIRST_USE and case.device == any_backend.device]
    assert cases
    for case in cases:
        row = measured(case)
        assert "problem" not in row, (case.key, row["problem"])
        assert all(implementation["problem"] is None for implementation in row["implementations"].values()), row[
            "implementations"
        ]
        assert min(row["implementations"]["fusedops"]["samples"]) > 1e-4


@pytest.mark.parametrize("section", ["small", "decoding", "growth", "launch", "seeds", "python", "call-gpu"])
def test_small_inputs_on_a_gpu(torch_gpu, section):
    """Measured by graphs, profiler and host, with the section's cache state."""
    side = side_of("torch")
    case = next(
        case for case in all_cases() if case.section == section and case.device == "cuda" and "torch" in case.frameworks
    )
    row = contest.measured(side, case, QUICK, quick=True)
    assert "problem" not in row and row["implementations"]["fusedops"]["problem"] is None
    implementation = side.implementations(case, side.inputs(case))["fusedops"]()
    outputs = (implementation.once or implementation.call)()
    size = sum(x.nbytes for x in (outputs if isinstance(outputs, tuple) else (outputs,)))
    assert 0 < size <= row["implementations"]["fusedops"]["memory"]  # a call allocates its results


def test_a_cold_clock_flushes_between_calls(torch_cpu, monkeypatch):
    clocks, caches = (
        importlib.import_module(f"benchmarks.implementations.torch.{name}") for name in ("clocks", "caches")
    )
    batches: list[int] = []

    def time(clock, call, count):
        assert clock.first is caches.flush
        batches.append(count)
        return 2.0 * count, 0.5 * count

    monkeypatch.setattr(clocks.EventClock, "_time", time)
    clock = clocks.EventClock(caches.flush, every=4)
    assert clock(lambda: None, 10) == 2.0 and clock.host_share == 0.25
    assert batches == [4, 4, 2]


@pytest.mark.parametrize("milliseconds, host_is_measured", [(0.5, False), (30, True)])
def test_a_gpu_sleeps_until_the_host_is_done(torch_gpu, alone, milliseconds, host_is_measured):
    """Calls of a few microseconds on the GPU, which the host issues much more slowly; the GPU sleeps 50 ms at most."""
    clocks, torch = importlib.import_module("benchmarks.implementations.torch.clocks"), torch_gpu.torch
    x = torch.ones(1024, device="cuda")

    def call() -> None:
        time.sleep(milliseconds * 1e-3)
        x.add_(1)

    clock = clocks.EventClock()
    for count in (1, 1, 10, 10, 10):
        seconds = clock(call, count)
    assert (clock.host_share > 0.9) == (seconds > 100e-6) == host_is_measured


def test_a_graph_holds_what_it_reads(torch_gpu):
    """A library may get copies of the inputs that only the graph refers to."""
    clocks, torch = importlib.import_module("benchmarks.implementations.torch.clocks"), torch_gpu.torch
    inputs = [torch.full((2**20,), float(i), device="cuda") for i in range(8)]
    whole, alive = clocks.graph(torch.square, [(x,) for x in inputs]), [weakref.ref(x) for x in inputs]
    del inputs
    gc.collect()
    assert all(x() is not None for x in alive)
    assert whole().eq(0).all()


def test_inputs_that_a_cache_holds_rotate(torch_gpu):
    side = side_of("torch")
    caches = importlib.import_module("benchmarks.implementations.torch.caches")
    small = bandwidth_case("small", "cuda", "relu", "forward", "bfloat16", (1, 4096))
    turns = caches.copies(small, side.inputs(small))
    assert len({values["x"].data_ptr() for values in turns}) == len(turns) == caches.MAX_COPIES
    large = bandwidth_case("stream", "cuda", "relu", "forward", "float32", (caches.cache_size(),))
    assert len(caches.copies(large, side.inputs(large))) == 1


def test_options_select_entries():
    chosen = Selection(operators=["relu", "softmax"], sections=["stream", "rows"], dtypes=["bfloat16"]).of(all_cases())
    assert {(case.operator, case.section, case.dtype) for case in chosen} == {
        ("relu", "stream", "bfloat16"),
        ("softmax", "rows", "bfloat16"),
    }
    assert len({case.key for case in all_cases()}) == len(list(all_cases()))


def test_a_shape_replaces_the_tables_own():
    chosen = Selection(shapes=[parse_shape("512x256")], dtypes=["float16", "float64"]).of(all_cases())
    assert {case.dtype for case in chosen} == {"float16", "float64"}
    assert {case.shape for case in chosen} == {(512, 256), (4, 128, 2, 128)}  # the latter is rope's
    assert {case.operator for case in chosen} == OPERATORS.keys() - WEIGHTS.keys() - {
        *ATTENTIONS,
        *(operator.name for operator in (*models.OPERATORS, *FLOAT8)),
    }
    assert not any(case.goals for case in chosen)
    assert {case.operator for case in Selection(shapes=[parse_shape("64x32x16")]).of(all_cases())} == WEIGHTS.keys()
    assert {case.work for case in chosen if case.operator == "relu" and case.dtype == "float16"} == {
        2 * 2 * 512 * 256.0,
        3 * 2 * 512 * 256.0,
    }


def test_a_quick_run_has_every_operator_once():
    quick = Selection(quick=True).of(all_cases())
    for device, sections, left_out in (
        ("cpu", ("cpu", "cpu-rows"), ATTENTIONS | {operator.name for operator in FLOAT8}),
        (
            "cuda",
            ("stream", "rows", "float8", "matmul", "linear", "attention", "decoding"),
            {"attention_decoding_heads"},  # for the CPU
        ),
    ):
        found = [(case.operator, case.variant) for case in quick if case.device == device and case.section in sections]
        assert len(found) == len(set(found))
        assert {operator for operator, _ in found} == OPERATORS.keys() - {x.name for x in models.OPERATORS} - left_out


def test_every_section_has_cases():
    assert {case.section for case in (*all_cases(), *distributed.cases(2, "cuda"))} == set(SECTIONS)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--op", "no_operator"], "invalid choice: 'no_operator'"),
        (["--shape", "4096x"], "'4096x' is none of 1048576, 4096x8192 and 512x512x512, as examples"),
        (["--device", "cpu", "--section", "rows"], "nothing is measured with these options together"),
        (["--framework", "tf", "--section", "python"], "nothing is measured with these options together"),
        (["--op", "matmul", "--section", "small"], "nothing is measured with these options together"),
        (["--compare", "missing.json"], "missing.json is no file that `make bench` has written"),
        (["--compare", str(ROOT / "README.md")], "README.md is no file that `make bench` has written"),
        (
            ["--merge", str(RATIOS)],
            "ratios.json is no file that `make bench` has written",
        ),
        (["--json", "x.json"], "--json needs --framework"),
    ],
)
def test_invalid_options(arguments, sentence, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and sentence in capsys.readouterr().err


def test_entries_are_listed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--list", "--device", "cpu", "--section", "steps"])
    main()
    assert capsys.readouterr().out.splitlines() == [
        "steps/llama/training step/float32/1x32",
        "steps/encoder/training step/float32/2x32",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("section", [STEPS, OPTIMIZERS])
def test_whole_steps_and_optimizers_are_measured(any_backend, measured, section):
    """Small shapes on a GPU, too: each baseline has a time, and no error."""
    if any_backend.framework == "torch":
        pytest.importorskip("transformers")
    (case,) = (
        case
        for case in all_cases()
        if case.section == section and case.device == "cpu" and any_backend.framework in case.frameworks
    )
    row = measured(replace(case, device=any_backend.device))
    assert "problem" not in row, row["problem"]
    assert any(name.startswith("fusedops") for name in row["implementations"])
    for name, implementation in row["implementations"].items():
        assert implementation["problem"] is None, (name, implementation["problem"])
        assert min(implementation["samples"]) > 0
        if any_backend.device == "cuda" and section == STEPS:
            assert implementation["peak"] > implementation["memory"]  # with its weights and moments


@pytest.mark.slow
@pytest.mark.parametrize("operator", [models.TINY_LLAMA, *models.FAMILIES])
def test_models_are_measured(torch_backend, operator):
    """Without compilers; families are small on a CPU."""
    pytest.importorskip("transformers")
    (case,) = (case for case in all_cases() if case.operator == operator)
    case = replace(case, device=torch_backend.device)
    row = contest.measured(side_of("torch"), case, QUICK, quick=True)
    assert "problem" not in row, row["problem"]
    for name in ("fusedops", "eager"):
        assert row["implementations"][name]["problem"] is None, row["implementations"][name]["problem"]
        assert min(row["implementations"][name]["samples"]) > 0


def test_elementwise_operators_under_xla_are_measured_on_a_cpu(tf_cpu):
    for variant, compiled in (("forward", True), ("backward", False)):
        case = bandwidth_case("cpu", "cpu", "relu", variant, "float32", (64,))
        row = contest.measured(side_of("tf"), case, QUICK, quick=False)
        implementations = row["implementations"]
        assert ({"XLA", "fusedops, XLA"} <= implementations.keys()) == compiled
        assert all(each["problem"] is None for each in implementations.values()), implementations


@pytest.mark.slow
@pytest.mark.parametrize("module", models.DISTRIBUTED)
def test_steps_on_several_devices(torch_backend, tmp_path, module):
    """All ranks measure all baselines, in small sizes with gloo and in those of the tables with NCCL."""
    pytest.importorskip("transformers")
    if torch_backend.device == "cuda" and torch_backend.gpus() < 2:
        pytest.skip("GPU: too few")
    path = tmp_path / "results.json"
    done = bench("--quick", "--gpus", "2", "--device", torch_backend.device, "--op", module, "--output", path)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(path.read_text())
    assert [row["variant"] for row in found["results"]] == [case.name for case in distributed.cases_of(module)]
    for row in found["results"]:
        assert "problem" not in row, row["problem"]
        assert {"fusedops"} < row["implementations"].keys()
        for name, implementation in row["implementations"].items():
            assert implementation["problem"] is None, (name, implementation["problem"])
            assert len(implementation["samples"]) == 3 and min(implementation["samples"]) > 0


def test_ranks_agree_on_the_slowest(torch_cpu, monkeypatch):
    """All ranks decide by the same time, otherwise one would stop before the other."""
    ranks = importlib.import_module("benchmarks.implementations.torch.ranks")
    reduced = []

    def all_reduce(x, op=ranks.dist.ReduceOp.SUM):
        reduced.append(op)
        if op == ranks.dist.ReduceOp.MAX:
            x.fill_(max(x.item(), 2.0))  # as if another rank had taken two seconds

    monkeypatch.setattr(ranks.dist, "all_reduce", all_reduce)
    assert ranks.SlowestRank("cpu")(lambda: None, 1) == 2.0
    assert reduced == [ranks.dist.ReduceOp.SUM, ranks.dist.ReduceOp.MAX]
