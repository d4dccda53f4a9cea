"""Writes docs/families.md from the counts in docs/families/."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from audits.families import steps_table
from audits.families.counting import KINDS, Entry

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
DATA = PAGE.with_suffix("")
STEPS = DATA / "steps"  # one file per machine
Entries = Mapping[str, Entry]

_MAX_REASONS = 12  # per kind
_MODEL_NAME = re.compile(r"(the code of|no flash attention for) \w+")  # reasons that differ only in the model's name
_LIBRARIES = {"transformers": "Hugging Face's transformers", "keras-hub": "KerasHub"}

_HEAD = """# Families of models

What [`convert`](converting.md) replaces in every family of models of Hugging Face's transformers and of KerasHub.
`make families` counts it and writes this page.

A family is a model type of transformers, or a backbone of KerasHub. Of each a small model is built, from its default
config with few layers, one of every kind at least, and mostly with small widths. Its modules are counted by what they
are, whether `convert` knows them or not:

| kind | what is counted |
| --- | --- |
| norms | modules without parts whose class has Norm in its name; not those of batches and groups of channels |
| activations | modules that are an activation function; not functions that a `forward` calls |
| gated MLPs | modules of several matrices whose code multiplies by an activation; in KerasHub blocks with a gate |
| rotary embeddings | modules whose code rotates queries and keys; in KerasHub the layers that rotate |
| sum + norm | calls of a norm with a sum within a `forward`: a residual connection and the norm after it |
| experts | modules with the matrices of several experts in one tensor; in KerasHub layers with Expert in their name |
| losses | models whose `forward` takes labels |
| attentions | modules with Attention in their class's name that run, when the small model does |

A module counts as replaced if `convert` changed it, or if the kernel of a module around it does its work as well.
In KerasHub a gate is a layer beside another of its shape, which a router's is not. It and a sum with its norm are lines
of a block's `call`: they count if `convert` gave the block another one. An attention counts if its `forward` or `call`
calls fusedops's attention when the converted model runs; parts of a model that its first inputs do not reach, such as
images beside text, are run alone where inputs for them are found.
"""


def write() -> None:
    PAGE.write_text(text(load()))


def load() -> dict[str, Entries]:
    """The saved counts by name of library and version, the newest first."""
    found = {path.stem: json.loads(path.read_text()) for path in DATA.glob("*.json")}
    return {name: found[name] for name in sorted(found, key=_order)}


def save(library: str, entries: Entries) -> None:
    """Writes one family per line, for readable diffs."""
    DATA.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in entries.items())
    (DATA / f"{library}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def text(counted: Mapping[str, Entries]) -> str:
    parts = [_HEAD, "## In all\n", _totals(counted)]
    newest: dict[str, str] = {}
    for name, entries in counted.items():
        library = name.rpartition("-")[0]
        if library in newest:
            parts += [_differences(name, entries, newest[library], counted[newest[library]])]
        else:
            newest[library] = name
            parts += [_families(name, entries), _reasons(entries), _problems(entries)]
    return "\n".join(parts + [_steps(json.loads(path.read_text())) for path in sorted(STEPS.glob("*.json"))])


def _steps(measured: Mapping[str, Any]) -> str:
    """The results of `python -m audits.families --speed` on one machine, with its description."""
    lines = steps_table.table(measured["families"])
    return "\n".join([f"## {measured['title']}", "", *measured["text"], "", *lines]) + "\n"


def _title(name: str) -> str:
    library, _, version = name.rpartition("-")
    return f"{_LIBRARIES[library]} {version}"


def _order(name: str) -> tuple[int, list[int]]:
    library, _, version = name.rpartition("-")
    return [*_LIBRARIES].index(library), [-int(number) for number in re.findall(r"\d+", version)]


def _built(entries: Entries) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if "counts" in entry}


def sums(entries: Entries) -> dict[str, list[int]]:
    """For each kind, the number of modules in all families and the number replaced."""
    counts = [entry["counts"] for entry in _built(entries).values()]
    return {kind: [sum(each.get(kind, [0, 0])[i] for each in counts) for i in (0, 1)] for kind in KINDS}


def _totals(counted: Mapping[str, Entries]) -> str:
    lines = ["| | families | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * (1 + len(KINDS))]
    for name, entries in counted.items():
        cells = [
            f"{100 * replaced / all_:.0f} % of {all_}" if all_ else "" for all_, replaced in sums(entries).values()
        ]
        lines.append(f"| {_title(name)} | {len(_built(entries))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(entry: Entry, kind: str) -> str:
    """`2/5`: two of five are replaced."""
    total, replaced = entry["counts"].get(kind, (0, 0))
    return f"{replaced}/{total}" if total else ""


def line(name: str, entry: Entry) -> str:
    """A line of the table of families."""
    return f"| {name} | {entry['model']} | {' | '.join(cell(entry, kind) for kind in KINDS)} |"


def _table(entries: Iterable[tuple[str, Entry]]) -> list[str]:
    head = ["| family | class | " + " | ".join(KINDS) + " |", "| --- | --- |" + " --- |" * len(KINDS)]
    return head + [line(name, entry) for name, entry in entries]


def _families(name: str, entries: Entries) -> str:
    parts = [
        f"## {_title(name)}",
        "",
        "How many are replaced, of how many there are.",
        "",
        *_table(_built(entries).items()),
    ]
    return "\n".join(parts) + "\n"


def _differences(name: str, entries: Entries, newest: str, others: Entries) -> str:
    def is_different(family: str, entry: Entry) -> bool:
        return line(family, entry) != line(family, others[family]) if family in _built(others) else True

    different = [(family, entry) for family, entry in _built(entries).items() if is_different(family, entry)]
    missing = [family for family in _built(others) if family not in _built(entries)]
    parts = [f"## {_title(name)}", "", f"The families whose rows differ from those of {_title(newest)}.", ""]
    parts += _table(different) if different else ["There is none."]
    parts += ["", f"Without: {', '.join(missing)}."] if missing else []
    return "\n".join(parts) + "\n"


def _reasons(entries: Entries) -> str:
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for entry in _built(entries).values():
        for kind, reasons in entry["kept"].items():
            for reason, count in reasons.items():
                module, _, why = reason.partition(": ")
                why = _MODEL_NAME.sub(r"\1 its model", why)
                found[kind][why][module] += count
    lines = [
        "### Why the others are not",
        "",
        "| kind | modules | reason | classes, such as |",
        "| --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        ordered = sorted(found[kind].items(), key=lambda item: (-item[1].total(), item[0]))
        for why, modules in ordered[:_MAX_REASONS]:
            examples = ", ".join(name for name, _ in sorted(modules.items(), key=lambda item: (-item[1], item[0]))[:4])
            lines.append(f"| {kind} | {modules.total()} | {_escaped(why)} | {len(modules)}: {examples} |")
        rest = ordered[_MAX_REASONS:]
        if rest:
            lines.append(f"| {kind} | {sum(modules.total() for _, modules in rest)} | {len(rest)} other reasons | |")
    return "\n".join(lines) + "\n"


def _problems(entries: Entries) -> str:
    lines = [f"| {name} | {_escaped(entry['problem'])} |" for name, entry in entries.items() if "problem" in entry]
    if not lines:
        return ""
    return "\n".join(["### Not built from a small config", "", "| family | why |", "| --- | --- |", *lines]) + "\n"


def _escaped(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;")[:160]
