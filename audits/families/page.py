"""docs/families.md, from the files that were counted into docs/families/."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from audits.families import steps_table
from audits.families.counting import KINDS, Row

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
DATA = PAGE.with_suffix("")
STEPS = DATA / "steps"  # a file for each machine
Rows = Mapping[str, Row]

_MOST_REASONS = 12  # of each kind
_OF_A_MODEL = re.compile(r"(the code of|no flash attention for) \w+")  # which say the same of many
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


def load() -> dict[str, Rows]:
    """What was counted: rows by name of library and version, the newest first."""
    found = {path.stem: json.loads(path.read_text()) for path in DATA.glob("*.json")}
    return {name: found[name] for name in sorted(found, key=_order)}


def save(library: str, rows: Rows) -> None:
    """One family a line, so that a change shows what has changed."""
    DATA.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows.items())
    (DATA / f"{library}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def text(counted: Mapping[str, Rows]) -> str:
    parts = [_HEAD, "## In all\n", _totals(counted)]
    newest: dict[str, str] = {}
    for name, rows in counted.items():
        library = name.rpartition("-")[0]
        if library in newest:
            parts += [_differences(name, rows, newest[library], counted[newest[library]])]
        else:
            newest[library] = name
            parts += [_families(name, rows), _reasons(rows), _problems(rows)]
    return "\n".join(parts + [_steps(json.loads(path.read_text())) for path in sorted(STEPS.glob("*.json"))])


def _steps(measured: Mapping[str, Any]) -> str:
    """`python -m audits.families --speed` on one machine, and where that was."""
    lines = steps_table.table(measured["families"])
    return "\n".join([f"## {measured['title']}", "", *measured["text"], "", *lines]) + "\n"


def _title(name: str) -> str:
    library, _, version = name.rpartition("-")
    return f"{_LIBRARIES[library]} {version}"


def _order(name: str) -> tuple[int, list[int]]:
    library, _, version = name.rpartition("-")
    return [*_LIBRARIES].index(library), [-int(number) for number in re.findall(r"\d+", version)]


def _built(rows: Rows) -> dict[str, Row]:
    return {name: row for name, row in rows.items() if "counts" in row}


def sums(rows: Rows) -> dict[str, list[int]]:
    """How many modules of each kind there are in all families, and how many are replaced."""
    counts = [row["counts"] for row in _built(rows).values()]
    return {kind: [sum(each.get(kind, [0, 0])[i] for each in counts) for i in (0, 1)] for kind in KINDS}


def _totals(counted: Mapping[str, Rows]) -> str:
    lines = ["| | families | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * (1 + len(KINDS))]
    for name, rows in counted.items():
        cells = [
            f"{100 * replaced / there:.0f} % of {there}" if there else "" for there, replaced in sums(rows).values()
        ]
        lines.append(f"| {_title(name)} | {len(_built(rows))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(row: Row, kind: str) -> str:
    """`2/5`: two of five are replaced."""
    there, replaced = row["counts"].get(kind, (0, 0))
    return f"{replaced}/{there}" if there else ""


def line(name: str, row: Row) -> str:
    """Of the table of families."""
    return f"| {name} | {row['model']} | {' | '.join(cell(row, kind) for kind in KINDS)} |"


def _table(rows: Iterable[tuple[str, Row]]) -> list[str]:
    head = ["| family | class | " + " | ".join(KINDS) + " |", "| --- | --- |" + " --- |" * len(KINDS)]
    return head + [line(name, row) for name, row in rows]


def _families(name: str, rows: Rows) -> str:
    parts = [
        f"## {_title(name)}",
        "",
        "How many are replaced, of how many there are.",
        "",
        *_table(_built(rows).items()),
    ]
    return "\n".join(parts) + "\n"


def _differences(name: str, rows: Rows, newest: str, others: Rows) -> str:
    def is_other(family: str, row: Row) -> bool:
        return line(family, row) != line(family, others[family]) if family in _built(others) else True

    different = [(family, row) for family, row in _built(rows).items() if is_other(family, row)]
    missing = [family for family in _built(others) if family not in _built(rows)]
    parts = [f"## {_title(name)}", "", f"The families whose rows differ from those of {_title(newest)}.", ""]
    parts += _table(different) if different else ["There is none."]
    parts += ["", f"Without: {', '.join(missing)}."] if missing else []
    return "\n".join(parts) + "\n"


def _reasons(rows: Rows) -> str:
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
        for why, modules in ordered[:_MOST_REASONS]:
            examples = ", ".join(name for name, _ in sorted(modules.items(), key=lambda item: (-item[1], item[0]))[:4])
            lines.append(f"| {kind} | {modules.total()} | {_escaped(why)} | {len(modules)}: {examples} |")
        rest = ordered[_MOST_REASONS:]
        if rest:
            lines.append(f"| {kind} | {sum(modules.total() for _, modules in rest)} | {len(rest)} other reasons | |")
    return "\n".join(lines) + "\n"


def _problems(rows: Rows) -> str:
    lines = [f"| {name} | {_escaped(row['problem'])} |" for name, row in rows.items() if "problem" in row]
    if not lines:
        return ""
    return "\n".join(["### Not built from a small config", "", "| family | why |", "| --- | --- |", *lines]) + "\n"


def _escaped(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;")[:160]
