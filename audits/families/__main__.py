"""The command line: counts the modules that `convert` replaces in every family, and compares results.

python -m audits.families                         counts all families of both libraries, writes docs/families.md
python -m audits.families --library transformers  counts one library's families, writes the page
python -m audits.families --page                  writes the page from earlier counts
python -m audits.families --check                 compares loss, outputs and gradients before and after
python -m audits.families --graph-breaks llama    lists the graph breaks of torch.compile before and after
python -m audits.families --speed llama bert      times training steps, on the GPU if available; --eager: not compiled
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from rich.console import Console

from audits.families import page, pool, steps_table
from audits.families.counting import Entry

MODULES = {"transformers": "audits.families.hugging_face", "keras-hub": "audits.families.keras_hub"}
LIMIT = 180.0  # seconds for one family
RESULTS = page.PAGE.parents[1] / "build" / "bench"


def main() -> None:
    options = _options()
    if options.check:
        sys.exit(_check(options.family))
    elif options.graph_breaks:
        sys.exit(_graph_breaks(options.family))
    elif options.speed:
        _speed(options.family, compiled=not options.eager)
    else:
        if not options.page:
            for library in options.library or MODULES:
                _count(library, options.family)
        if not options.family:
            page.write()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m audits.families", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="*", help="by default all")
    parser.add_argument("--library", action="append", choices=MODULES, help="by default both")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--page", action="store_true", help="write the page, count nothing")
    mode.add_argument("--check", action="store_true", help="compare results before and after")
    mode.add_argument("--graph-breaks", action="store_true", help="list graph breaks before and after")
    mode.add_argument("--speed", action="store_true", help="time training steps")
    parser.add_argument("--eager", action="store_true", help="with --speed: nothing is compiled")
    return parser.parse_args()


def _run(function: Any, names: list[str], library: str = "transformers", **options: Any) -> Iterator[tuple[str, Any]]:
    """The results of a module's function for these families, or for all of the library."""
    module = importlib.import_module(MODULES[library])
    names = names or list(module.families())
    return pool.run(function, names, LIMIT, [*module.IMPORTED, function.__module__], library, **options)


def _count(library: str, names: list[str]) -> None:
    found = dict(_run(importlib.import_module(MODULES[library]).count, names, library))
    entries: dict[str, Entry] = {
        name: {"problem": str(entry)} if isinstance(entry, pool.Problem) else entry for name, entry in found.items()
    }
    if names:
        print(json.dumps(entries, indent=1))
    else:
        page.save(f"{library}-{metadata.version(library)}", entries)


def _check(names: list[str]) -> int:
    """The number of families that failed."""
    from audits.families import equality

    results, compared, failed = {}, 0, 0
    for name, verdict in _run(equality.check, names):
        if isinstance(verdict, pool.Problem):
            results[name] = str(verdict)
            print(f"{name}: not compared: {verdict}", flush=True)
            continue
        results[name] = verdict
        compared += bool(verdict["converted"])
        failed += bool(verdict["faults"])
        if verdict["faults"]:
            print(f"{name}: {'; '.join(verdict['faults'])}", flush=True)
    print(f"{compared} families with converted modules compared, {failed} of them not as accurate as before")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "families-equality.json").write_text(json.dumps(results, indent=1))
    return failed


def _graph_breaks(names: list[str]) -> int:
    """The number of families with new graph breaks."""
    from audits.families import breaks

    worse = 0
    for name, found in _run(breaks.breaks, names):
        if isinstance(found, pool.Problem):
            print(f"{name}: {found}")
            continue
        before, after = found
        new = breaks.new(before, after)
        worse += bool(new)
        print(f"{name}: {len(before)} graph breaks before, {len(after)} after, {len(new)} of them new")
        for title, reasons in (("before", before), ("after", after)):
            for reason in reasons:
                print(f"  {title}: {reason}")
    return worse


def _speed(names: list[str], compiled: bool) -> None:
    from audits.families import speed
    from audits.families.hugging_face import families

    tasks = speed.tasks(names or list(families()), compiled)
    times: dict[str, dict[str, float]] = {}
    console = Console(stderr=True)
    for task, result in _run(speed.steps, tasks, at_once=1):
        name = task.partition(":")[0]
        if isinstance(result, pool.Problem):
            console.print(f"{task}: {result}", markup=False)
        else:
            times.setdefault(name, {}).update(result)
    print("\n".join(steps_table.table(times)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "families-speed.json").write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main()
