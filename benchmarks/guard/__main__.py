"""Compares fusedops's time over the framework's own on a CPU with committed ratios.

python -m benchmarks.guard              fails if a ratio is more than a quarter above the committed one
python -m benchmarks.guard --update     measures and writes all ratios; best on an idle machine

`make bench-check` is the first of these. Disturbances last for seconds, so ratios that fail are measured again at the
end, at most twice. The file has ratios for several processors and framework versions. On other machines ratios are
printed once and nothing fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from benchmarks.guard import judging, ratio
from fusedops.loading import FRAMEWORKS, fault


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write the ratios instead of comparing them")
    parser.add_argument("--framework", choices=tuple(ratio.OF_CALLS), help="by default all installed frameworks")
    parser.add_argument(
        "--ratios", type=Path, default=judging.RATIOS, metavar="FILE", help="by default the committed ones"
    )
    options = parser.parse_args()
    ratio.use_one_thread()  # for the child processes, before they import a framework
    if not options.update and not options.ratios.is_file():
        parser.error(f"there is no {options.ratios}")
    codes = []
    for name in (options.framework,) if options.framework else ratio.OF_CALLS:
        problem = fault(FRAMEWORKS[name])
        if problem:
            print(problem, flush=True)
            continue
        run = judging.update if options.update else judging.judge
        process = multiprocessing.get_context("spawn").Process(target=run, args=(name, options.ratios))
        process.start()
        process.join()
        codes.append(process.exitcode)
    if not codes:
        print("fusedops: nothing was measured")
    return int(not codes or any(codes))


if __name__ == "__main__":
    sys.exit(main())
