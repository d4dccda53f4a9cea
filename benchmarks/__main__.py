"""The command line: runs each framework in a separate process, then prints the tables of all.

python -m benchmarks                          everything, on the GPU if available: minutes
python -m benchmarks --device cpu             on the CPU
python -m benchmarks --quick                  rough figures in under a minute, without compilers
python -m benchmarks --op relu --op matmul    these operators
python -m benchmarks --section rows           this table; "steps": training steps, "optimizers": AdamW steps
python -m benchmarks --section rows --list    lists the rows without measuring them
python -m benchmarks --shape 4096x8192 --dtype float16 --dtype float32   rows of that shape, in these dtypes
python -m benchmarks --gpus 2                 steps on two GPUs; with --device cpu in two processes
python -m benchmarks --compare old.json       also lists rows that became slower or faster
python -m benchmarks --framework tf --json tf.json       one framework, in this process
python -m benchmarks --merge torch.json tf.json          the tables of earlier runs
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import distributed
from benchmarks.cases import all_cases
from benchmarks.cases.case import ALL, DISTRIBUTED, FIRST_USE, GROWTH, OPTIMIZERS, SECTIONS, SIZES, STEPS, Case
from benchmarks.cases.selection import Selection, parse_shape
from benchmarks.measuring import runner
from benchmarks.operators import OPERATORS
from benchmarks.results import compare, report
from benchmarks.results.schema import Run

RESULTS = Path(__file__).parent.parent / "build" / "bench" / "results.json"
UNUSABLE = 75  # exit status of a process that another must resume: EX_TEMPFAIL of sysexits.h
MAX_RESTARTS = 20


def main() -> None:
    options = _options()
    if options.prepare:
        part, parts = map(int, options.prepare.split("/"))
        runner.prepare(_compiled(options)[part::parts])
        return
    if options.list:
        print("\n".join(case.key for case in _chosen(options)))
        return
    if options.json:
        is_leader = int(os.environ.get("RANK", "0")) == 0  # all ranks find the same results
        path = options.json if is_leader else Path(os.devnull)
        is_complete = runner.measure(
            options.framework, options.device, _chosen(options), options.quick, path, resume=options.resume
        )
        sys.exit(0 if is_complete else UNUSABLE)
    old = _load(options.compare) if options.compare else None  # before the output may overwrite it
    if options.merge:
        runs, problems = [run for path in options.merge for run in _load(path)], []
    else:
        runs, problems = _measure(options)
        if not any(run["results"] for run in runs):
            sys.exit("\n".join([*(note for run in runs for note in run["notes"]), *problems, "Nothing was measured"]))
    # A file or a pipe has no width; the default of 80 columns would break every cell.
    console = Console(width=None if sys.stdout.isatty() else max(200, shutil.get_terminal_size().columns))
    console.print()
    report.show(console, runs)
    if old is not None:
        console.print()
        compare.show(console, old, runs)
    if not options.merge:
        options.output.write_text(json.dumps(runs, indent=1))
        console.print(f"Written to {options.output}", markup=False, highlight=False, soft_wrap=True)
    if problems:
        sys.exit("\n".join(problems))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU if available")
    parser.add_argument("--framework", choices=ALL, help="by default all installed frameworks")
    again: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--op", **again, choices=OPERATORS, help="this operator; may be given again")
    parser.add_argument("--section", **again, choices=SECTIONS, help="this table; may be given again")
    parser.add_argument("--dtype", **again, choices=SIZES, help="this dtype; may be given again")
    parser.add_argument(
        "--shape",
        **again,
        type=parse_shape,
        help="replaces the tables' shapes: 4096x8192 for rows, 1048576 elements, 512x512x512 for products (M, N, K); "
        "allows any --dtype; may be given again",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="only steps on N GPUs, of benchmarks/distributed")
    parser.add_argument("--list", action="store_true", help="measure nothing, print the keys of all rows")
    parser.add_argument("--quick", action="store_true", help="one shape of each operator, few rounds, no compilers")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with the results of an earlier run")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=RESULTS,
        help="file for all results; by default build/bench/results.json",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --framework: measure it in this process")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing, print these files")
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)  # with --json, after UNUSABLE
    parser.add_argument("--prepare", metavar="I/N", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json and not options.framework:
        parser.error("--json needs --framework: each framework is measured in a separate process")
    for path in (*(options.merge or ()), *([options.compare] if options.compare else ())):
        try:
            _load(path)
        except (OSError, ValueError, TypeError):
            parser.error(f"{path} is no file that `make bench` has written")
    if not (options.merge or _chosen(options)):
        parser.error("nothing is measured with these options together")
    return options


def _load(path: Path) -> list[Run]:
    """The runs in a file: one framework's run, or the list in results.json."""
    found = json.loads(path.read_text())
    found = found if isinstance(found, list) else [found]
    if not all("results" in run for run in found):
        raise ValueError(path)
    return found


def _chosen(options: argparse.Namespace) -> list[Case]:
    selection = Selection(options.op, options.section, options.dtype, options.shape, options.quick)
    return selection.of(
        case
        for case in (distributed.cases(options.gpus, options.device or "cuda") if options.gpus else all_cases())
        if (not options.device or case.device == options.device)
        and (not options.framework or options.framework in case.frameworks)
    )


def _measure(options: argparse.Namespace) -> tuple[list[Run], list[str]]:
    """The runs of the frameworks' processes, and sentences on processes that failed."""
    runs, problems = [], []
    options.output.parent.mkdir(parents=True, exist_ok=True)
    chosen = {framework for case in _chosen(options) for framework in case.frameworks}
    for framework in (options.framework,) if options.framework else ALL:
        if framework not in chosen:
            continue
        path = options.output.with_suffix(f".{framework}.part")
        path.unlink(missing_ok=True)
        status = _child(framework, options, path)
        found = _load(path) if path.exists() else []
        path.unlink(missing_ok=True)
        if status:
            problems.append(f"The process of {framework} ended with status {status}: rows of it are missing")
            for run in found:
                run["notes"].append(problems[-1])
        runs += found
    return runs, problems


def _child(framework: str, options: argparse.Namespace, path: Path) -> int:
    """Measures one framework in a separate process: two that share a GPU or a thread pool disturb each other."""
    launcher = [sys.executable]
    if options.gpus:
        # A host's name may not resolve, and multicast over NVLink may not be available.
        for name, value in (("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_NVLS_ENABLE", "0")):
            os.environ.setdefault(name, value)
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.gpus)]
        launcher += ["--local-ranks-filter", "0"]  # all ranks print the same
    command = [*launcher, "-m", "benchmarks", "--framework", framework]
    command += ["--gpus", str(options.gpus)] if options.gpus else []
    command += ["--device", options.device] if options.device else []
    command += ["--quick"] if options.quick else []
    for name in ("op", "section", "dtype"):
        for value in getattr(options, name):
            command += [f"--{name}", value]
    for shape in options.shape:
        command += ["--shape", "x".join(map(str, shape))]
    if framework == "torch" and options.device != "cpu" and not options.quick and shutil.which("nvidia-smi"):
        _prepare(command, len(_compiled(options)))
    command += ["--json", str(path)]
    status = subprocess.run(command, check=False).returncode
    for _ in range(MAX_RESTARTS):
        if status != UNUSABLE:
            break
        status = subprocess.run([*command, "--resume"], check=False).returncode
    return status


def _compiled(options: argparse.Namespace) -> list[Case]:
    """The cases with PyTorch implementations that compile."""
    return [
        case
        for case in _chosen(options)
        if case.device == "cuda"
        and "torch" in case.frameworks
        and case.section not in ("launch", "matmul", "call-gpu", FIRST_USE, STEPS, OPTIMIZERS, DISTRIBUTED, *GROWTH)
    ]


def _prepare(command: list[str], count: int) -> None:
    """Fills the disk caches of torch.compile and other libraries by compiling in several processes."""
    parts = min(12, (os.cpu_count() or 1) - 2, count // 4)
    if parts < 2:
        return
    print(f"{parts} processes compile the baselines of {count} rows", flush=True)
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    children = [
        subprocess.Popen(
            [*command, "--prepare", f"{part}/{parts}"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for part in range(parts)
    ]
    for child in children:
        child.wait()


if __name__ == "__main__":
    main()
