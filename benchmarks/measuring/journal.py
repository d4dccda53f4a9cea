"""The results of a run so far, printed and written to disk after every case."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.measuring.environment import clocks, environment
from benchmarks.results.report import line
from benchmarks.results.schema import Row, Run


class Journal:
    def __init__(self, console: Console, framework: str, quick: bool, path: Path) -> None:
        self.run: Run = {
            "framework": framework,
            "quick": quick,
            "environment": environment(),
            "results": [],
            "notes": [],
        }
        self.crashed: dict[str, str] = {}  # implementations to leave out of the next case, with their problems
        self._console, self._path = console, path
        self._start = time.perf_counter()

    def resume(self) -> str:
        """Loads the results of a crashed process, to continue after them. Returns the device that it measured."""
        self.run = json.loads(self._path.read_text())
        self._start -= self.run["environment"]["seconds"]
        row = self.run["results"][-1]
        found = row["implementations"]
        self.crashed = {name: found[name]["problem"] or "" for name in found if found[name].get("crashed")}
        if self.crashed:
            self.run["results"].pop()
        return row["device"]

    def describe(self, **facts: Any) -> None:
        """Records facts about the framework and the machine."""
        self.run["environment"].update(facts)  # type: ignore[typeddict-item]

    def note(self, text: str) -> None:
        if text not in self.run["notes"]:
            self.run["notes"].append(text)
        self._console.print(text, markup=False, soft_wrap=True)

    def add(self, row: Row, place: str) -> None:
        self.crashed = {}
        self.run["results"].append(row)
        self.save()
        self._console.print(f"{place} {line(self.run, row)}", markup=False, soft_wrap=True)

    def end(self) -> None:
        after = clocks()
        if after and "clocks" in self.run["environment"]:
            self.run["environment"]["clocks"]["after"] = after
        self.save()

    def save(self) -> None:
        self.run["environment"]["seconds"] = time.perf_counter() - self._start
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.run, indent=1))
