"""The command line: runs each framework in a process of its own, then prints the tables of both.

python -m benchmarks                          all that this machine has: minutes
python -m benchmarks --quick --device cpu     rough figures
python -m benchmarks --op relu --op matmul    these operators
python -m benchmarks --section rows           these tables
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

from rich.console import Console

from benchmarks import report, runner
from benchmarks.case import OPERATORS, SECTIONS, Case
from benchmarks.cases import cases

BUILD = Path(__file__).parent.parent / "build" / "bench"
FRAMEWORKS = ("torch", "tf")


def main() -> None:
    options = _options()
    if options.prepare:
        part, parts = map(int, options.prepare.split("/"))
        runner.prepare(_compiled(options)[part::parts])
        return
    if options.json:
        devices = [options.device] if options.device else ["cpu", "cuda"]
        runner.measure(options.framework, devices, _chosen(options, *devices), options.quick, options.json)
        return
    frameworks = (options.framework,) if options.framework else FRAMEWORKS
    paths = options.merge or [_child(framework, options) for framework in frameworks]
    runs = [json.loads(path.read_text()) for path in paths if path.exists()]
    # A file or a pipe has no width of its own, and 80 columns break every cell.
    console = Console(width=None if sys.stdout.isatty() else max(200, shutil.get_terminal_size().columns))
    console.print()
    report.show(console, runs)
    BUILD.mkdir(parents=True, exist_ok=True)
    results = BUILD / "results.json"
    results.write_text(json.dumps(runs, indent=1))
    console.print(f"Written to {results}", markup=False, highlight=False, soft_wrap=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default both, as far as they are there")
    parser.add_argument("--framework", choices=FRAMEWORKS, help="by default both, as far as they are there")
    parser.add_argument("--op", action="append", choices=OPERATORS, help="this operator; may be given again")
    parser.add_argument("--section", action="append", choices=SECTIONS, help="this table; may be given again")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rough figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --framework: measure it in this process")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing, print these files")
    parser.add_argument("--prepare", metavar="I/N", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json and not options.framework:
        parser.error("--json needs --framework: the frameworks are measured in processes of their own")
    return options


def _chosen(options: argparse.Namespace, *devices: str) -> list[Case]:
    return [
        case
        for case in cases()
        if case.device in devices
        and (not options.op or case.operator in options.op)
        and (not options.section or case.section in options.section)
    ]


def _child(framework: str, options: argparse.Namespace) -> Path:
    """Measures one framework in a process of its own: two that share a GPU or a thread pool disturb each other."""
    path = BUILD / f"{framework}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", "--framework", framework]
    command += ["--device", options.device] if options.device else []
    command += ["--quick"] if options.quick else []
    for name in ("op", "section"):
        for value in getattr(options, name) or ():
            command += [f"--{name}", value]
    if framework == "torch" and options.device != "cpu" and shutil.which("nvidia-smi"):
        _prepare(command, len(_compiled(options)))
    status = subprocess.run([*command, "--json", str(path)], check=False).returncode
    if status:
        print(f"the process of {framework} ended with status {status}")
    return path


def _compiled(options: argparse.Namespace) -> list[Case]:
    """The cases in which PyTorch's contenders compile something."""
    return [
        case
        for case in _chosen(options, "cuda")
        if "torch" in case.frameworks and case.section not in ("launch", "matmul")
    ]


def _prepare(command: list[str], count: int) -> None:
    """Lets several processes compile what torch.compile and other libraries will run: their caches are on the disk."""
    parts = min(12, (os.cpu_count() or 1) - 2, count // 4)
    if parts < 2:
        return
    print(f"{parts} processes compile the peers of {count} rows", flush=True)
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
