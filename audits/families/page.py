"""docs/families.md and its full tables on the site, from the files that were counted into docs/families/."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from audits.families import steps_table
from audits.families.counting import GATED, KINDS, NORMS, ROTARY, Entry

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
DATA = PAGE.with_suffix("")
STEPS = DATA / "steps"  # a file for each machine
Entries = Mapping[str, Entry]

_MAX_REASONS = 5  # of each kind
_WHOLE = (NORMS, GATED, ROTARY)
_OF_A_MODEL = re.compile(r"(the code of|no flash attention for) \w+")  # which say the same of many
_LIBRARIES = {"transformers": "Hugging Face's transformers", "keras-hub": "KerasHub"}

_HEAD = """# Families of models

`make families` counts the modules that [`convert`](converting.md) replaces in every family of Hugging Face's
transformers and of KerasHub, and writes this page. `make site` writes the table of all families.

A family is a model type of transformers or a backbone of KerasHub. For each, a small model is built from the default
config with few layers, at least one of every kind. Its modules are counted by kind, also those that `convert` does not
know:

| kind | modules |
| --- | --- |
| norms | modules without submodules whose class has Norm in its name, except batch and group norms |
| activations | modules that are an activation function; functions that a `forward` calls are not counted |
| gated MLPs | modules of several matrices whose code multiplies by an activation; in KerasHub, blocks with a gate |
| rotary embeddings | modules whose code rotates queries and keys; in KerasHub, the layers that rotate |
| sum + norm | calls of a norm on a sum within a `forward`: a residual connection and the norm after it |
| experts | modules with the matrices of several experts in one tensor; in KerasHub, layers with Expert in their name |
| losses | models whose `forward` takes labels |
| attentions | modules with Attention in their class name that run when the small model does |

A module counts as replaced if `convert` changed it, or if the kernel of an enclosing module does its work. In KerasHub
a gate and a sum with its norm are lines of a block's `call`; they count if `convert` gave the block another `call`. An
attention counts if the converted model calls fusedops's attention there. Parts that the first inputs do not reach, such
as the image encoder of a text model, run alone where inputs for them are found.
"""


def write() -> None:
    PAGE.write_text(text(load()))


def load() -> dict[str, Entries]:
    """The counts by name of library and version, the newest first."""
    found = {path.stem: json.loads(path.read_text()) for path in DATA.glob("*.json")}
    return {name: found[name] for name in sorted(found, key=_order)}


def save(library: str, rows: Entries) -> None:
    """One family a line, so that a change shows what has changed."""
    DATA.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows.items())
    (DATA / f"{library}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def text(counted: Mapping[str, Entries]) -> str:
    """The tracked page: totals, reasons and training steps, without the tables of all families."""
    parts = [_HEAD, "## Totals\n", totals(counted)]
    parts += [f"## {_title(name)}\n\n{_names(rows)}\n{_reasons(rows)}" for name, rows in newest(counted).items()]
    return "\n".join(parts + [_steps(measured) for measured in steps()])


def full_pages(counted: Mapping[str, Entries]) -> dict[str, str]:
    """The tables of all families by the name of a page for the site: one for each library."""
    pages = {}
    for name, rows in newest(counted).items():
        older = {other: counted[other] for other in counted if _library(other) == _library(name) and other != name}
        parts = [_families(name, rows), _problems(rows)]
        parts += [_differences(other, each, name, rows) for other, each in older.items()]
        pages[f"families-{_library(name)}"] = "\n".join(parts)
    return pages


def steps() -> list[Mapping[str, Any]]:
    """The training steps that `python -m audits.families --speed` measured, a file for each machine."""
    return [json.loads(path.read_text()) for path in sorted(STEPS.glob("*.json"))]


def newest(counted: Mapping[str, Entries]) -> dict[str, Entries]:
    """The newest version of each library."""
    names = {_library(name): name for name in reversed(counted)}
    return {name: rows for name, rows in counted.items() if names[_library(name)] == name}


def _library(name: str) -> str:
    return name.rpartition("-")[0]


def _names(rows: Entries) -> str:
    """The families in which every norm, gated MLP and rotary embedding is replaced, and the others."""

    def is_whole(row: Entry) -> bool:
        return all(there == replaced for kind in _WHOLE for there, replaced in [row["counts"].get(kind, (0, 0))])

    built = _built(rows)
    partly = [name for name, row in built.items() if not is_whole(row)]
    count = f"{len(built) - len(partly)} of {len(built)}"
    whole = f"In {count} families every norm, gated MLP and rotary embedding is replaced."
    others = "others are" if len(partly) > 1 else "other is"
    return textwrap.fill(f"{whole} The {others} {', '.join(partly)}.", 120, break_on_hyphens=False) + "\n"


def _steps(measured: Mapping[str, Any]) -> str:
    lines = steps_table.table(measured["families"])
    return "\n".join([f"## {measured['title']}", "", *measured["text"], "", *lines]) + "\n"


def _title(name: str) -> str:
    library, _, version = name.rpartition("-")
    return f"{_LIBRARIES[library]} {version}"


def _order(name: str) -> tuple[int, list[int]]:
    library, _, version = name.rpartition("-")
    return [*_LIBRARIES].index(library), [-int(number) for number in re.findall(r"\d+", version)]


def _built(rows: Entries) -> dict[str, Entry]:
    return {name: row for name, row in rows.items() if "counts" in row}


def sums(rows: Entries) -> dict[str, list[int]]:
    """The numbers of modules of each kind in all families, and of replaced ones."""
    counts = [row["counts"] for row in _built(rows).values()]
    return {kind: [sum(each.get(kind, [0, 0])[i] for each in counts) for i in (0, 1)] for kind in KINDS}


def totals(counted: Mapping[str, Entries]) -> str:
    lines = ["| | families | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * (1 + len(KINDS))]
    for name, rows in counted.items():
        cells = [
            f"{100 * replaced / there:.0f} % of {there}" if there else "" for there, replaced in sums(rows).values()
        ]
        lines.append(f"| {_title(name)} | {len(_built(rows))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(row: Entry, kind: str) -> str:
    """`2/5`: two of five are replaced."""
    there, replaced = row["counts"].get(kind, (0, 0))
    return f"{replaced}/{there}" if there else ""


def line(name: str, row: Entry) -> str:
    """A line of the table of families."""
    return f"| {name} | {row['model']} | {' | '.join(cell(row, kind) for kind in KINDS)} |"


def _table(rows: Iterable[tuple[str, Entry]]) -> list[str]:
    head = ["| family | class | " + " | ".join(KINDS) + " |", "| --- | --- |" + " --- |" * len(KINDS)]
    return head + [line(name, row) for name, row in rows]


def _families(name: str, rows: Entries) -> str:
    parts = [
        f"# Families of {_title(name)}",
        "",
        "Each cell is the number of replaced modules over the number of modules.",
        "",
        *_table(_built(rows).items()),
    ]
    return "\n".join(parts) + "\n"


def _differences(name: str, rows: Entries, newest: str, others: Entries) -> str:
    def is_other(family: str, row: Entry) -> bool:
        return line(family, row) != line(family, others[family]) if family in _built(others) else True

    different = [(family, row) for family, row in _built(rows).items() if is_other(family, row)]
    missing = [family for family in _built(others) if family not in _built(rows)]
    parts = [f"## {_title(name)}", "", f"The families whose rows differ from those of {_title(newest)}.", ""]
    parts += _table(different) if different else ["There is none."]
    parts += ["", f"Without: {', '.join(missing)}."] if missing else []
    return "\n".join(parts) + "\n"


def _reasons(rows: Entries) -> str:
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in _built(rows).values():
        for kind, reasons in row["kept"].items():
            for reason, count in reasons.items():
                module, _, why = reason.partition(": ")
                why = _OF_A_MODEL.sub(r"\1 its model", why)
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


def _problems(rows: Entries) -> str:
    lines = [f"| {name} | {_escaped(row['problem'])} |" for name, row in rows.items() if "problem" in row]
    if not lines:
        return ""
    return "\n".join(["### Not built from a small config", "", "| family | why |", "| --- | --- |", *lines]) + "\n"


def _escaped(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;")[:160]
