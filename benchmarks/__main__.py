"""The command line: runs each framework in a process of its own, then prints the tables of both.

python -m benchmarks                          all that this machine has, about 4 minutes on two cores
python -m benchmarks --quick --device cpu     under a minute
python -m benchmarks --op relu --op matmul    these operators
python -m benchmarks --framework tf --json tf.json       one framework, in this process
python -m benchmarks --merge torch.json tf.json          the tables of earlier runs
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import report, runner
from benchmarks.cases import OPERATORS, cases

BUILD = Path(__file__).parent.parent / "build" / "bench"
FRAMEWORKS = ("torch", "tf")


def main() -> None:
    options = _options()
    if options.json:
        devices = [options.device] if options.device else ["cpu", "cuda"]
        chosen = [case for case in cases() if not options.op or case.operator in options.op]
        runner.measure(options.framework, devices, chosen, options.quick, options.json)
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
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rough figures, under a minute on a CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --framework: measure it in this process")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing, print these files")
    options = parser.parse_args()
    if options.json and not options.framework:
        parser.error("--json needs --framework: the frameworks are measured in processes of their own")
    return options


def _child(framework: str, options: argparse.Namespace) -> Path:
    """Measures one framework in a process of its own: two that share a GPU or a thread pool disturb each other."""
    path = BUILD / f"{framework}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", "--framework", framework, "--json", str(path)]
    command += ["--device", options.device] if options.device else []
    command += ["--quick"] if options.quick else []
    for operator in options.op or ():
        command += ["--op", operator]
    status = subprocess.run(command, check=False).returncode
    if status:
        print(f"the process of {framework} ended with status {status}")
    return path


if __name__ == "__main__":
    main()
