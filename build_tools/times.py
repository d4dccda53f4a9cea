"""python -m build_tools.times: recompiles every object of the last build, and prints its CPU time and its size.

Run `make build` first, with FUSEDOPS_CUDA_ARCHS for the architectures to measure. The build itself is not changed:
objects are compiled into a temporary folder, without a compiler cache. MAX_JOBS compilers run at once.

    --only TEXT      only sources whose path contains TEXT
    --json FILE      writes the result
    --compare FILE   an earlier result, shown beside this one
    --rows N         the number of objects in the table (20)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypedDict

from fusedops.building.ninja import find_ninja
from fusedops.building.options import COMPILER_CACHES, BuildError, Options
from fusedops.building.progress import progress


class Cost(TypedDict):
    seconds: float  # CPU time
    bytes: int  # size of the object
    memory: int  # peak memory of a compiler process, in bytes


class Command(TypedDict):
    file: str
    command: str
    output: str


def commands(options: Options, only: str) -> list[Command]:
    """The compilers' commands in the ninja file of the last build."""
    path = options.folder / "build.ninja"
    if not path.is_file():
        raise BuildError(f"{path} does not exist. Run: make build")
    compdb = [find_ninja(), "-f", str(path), "-t", "compdb"]
    found = json.loads(subprocess.run(compdb, capture_output=True, text=True, check=True).stdout)
    return [c for c in found if " -c " in c["command"] and only in c["file"]]


def measure(command: Command, folder: Path) -> Cost:
    """Compiles one object into `folder`."""
    words = command["command"].split(" ", 1)
    text = words[1] if Path(words[0]).name in COMPILER_CACHES else command["command"]
    made = folder / command["output"].replace("/", "-")
    text = text.replace(f"-o {command['output']}", f"-o {made}").replace(f"{command['output']}.d", f"{made}.d")
    with open(made.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(["/bin/sh", "-c", text], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BuildError(f"{text}\n{made.with_suffix('.log').read_text(errors='replace')}")
    return {
        "seconds": usage.ru_utime + usage.ru_stime,
        "bytes": made.stat().st_size,
        "memory": usage.ru_maxrss * 1024,
    }


def measure_all(wanted: list[Command], jobs: int) -> dict[str, Cost]:
    """The costs by source file."""
    result: dict[str, Cost] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        progress(print, verbose=True) as show,
        ThreadPoolExecutor(jobs) as pool,
    ):
        running = {pool.submit(measure, command, Path(folder)): command["file"] for command in wanted}
        try:
            for future in as_completed(running):
                result[running[future]] = future.result()
                show(len(result), len(wanted), running[future])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return result


def table(costs: dict[str, Cost], before: dict[str, Cost], rows: int) -> Iterator[str]:
    """Lines in Markdown: the totals, then the objects that take longest, now or before."""
    columns = ["seconds", "MB"] if not before else ["seconds before", "seconds", "MB before", "MB"]
    yield f"| object | {' | '.join(columns)} |"
    yield "| --- |" + " ---: |" * len(columns)

    def line(name: str, files: set[str]) -> str:
        def total(of: dict[str, Cost], key: str, unit: float, digits: int) -> str:
            found = [cost[key] for file, cost in of.items() if file in files]  # type: ignore[literal-required]
            return f"{sum(found) / unit:.{digits}f}" if found else ""

        sides = [before, costs] if before else [costs]
        cells = [total(side, "seconds", 1, 0) for side in sides] + [total(side, "bytes", 1e6, 1) for side in sides]
        return f"| {name} | {' | '.join(cells)} |"

    every = costs.keys() | before.keys()
    for name, suffixes in (("all", ("",)), ("all .cu", (".cu",)), ("all .cpp and .cc", (".cpp", ".cc"))):
        chosen = {file for file in every if file.endswith(suffixes)}
        count = sum(file in costs for file in chosen)
        yield line(f"{name}: {count} objects", chosen)
    longest = sorted(every, key=lambda file: -max(s[file]["seconds"] for s in (costs, before) if file in s))
    for file in longest[:rows]:
        yield line(file, {file})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m build_tools.times", description="CPU time and size of each object")
    parser.add_argument("--only", default="", metavar="TEXT", help="only sources whose path contains TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier result, shown beside this one")
    parser.add_argument("--rows", type=int, default=20, metavar="N", help="objects in the table (20)")
    given = parser.parse_args()
    options = Options.from_environment()
    try:
        costs = measure_all(commands(options, given.only), options.jobs)
    except BuildError as error:
        raise SystemExit(f"fusedops: {error}") from None
    before = json.loads(given.compare.read_text()) if given.compare else {}
    before = {file: cost for file, cost in before.items() if given.only in file}
    if given.json:
        given.json.write_text(json.dumps(costs, indent=1) + "\n")
    print("\n".join(table(costs, before, given.rows)))


if __name__ == "__main__":
    main()
