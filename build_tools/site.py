"""Sources of the documentation site, from README.md, docs/, the docstrings and the result files: `make site`.

The pages go to build/site/docs and the configuration to build/site/mkdocs.yml; mkdocs turns them into build/site/html.
Links to pages stay relative, links to other files of the repository become links to its address.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from audits.families import page as families
from benchmarks.page.blocks import FOLDER as RUNS
from benchmarks.page.blocks import MARKED
from benchmarks.page.text import full_page, load
from build_tools import reference

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "site"
THEME = ROOT / "docs" / "mkdocs.yml"
DOCS = ROOT / "docs"
AT_ROOT = {"README.md": "index.md", **{name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
LISTED = re.compile(r"\[`(fo|fnn|fk|[\w.]+)\.([\w.]+)`\]\([^)]+\)")
PACKAGES = {"fnn": "fusedops.torch.nn", "fk": "fusedops.tf.keras"}


def pages() -> dict[str, str]:
    """The text of each page by its path in the site."""
    found = {target: _converted(ROOT / name, target) for name, target in AT_ROOT.items()}
    # The menu beside the start page would be empty.
    found["index.md"] = "---\nhide: [navigation]\n---\n" + found["index.md"]
    for path in sorted(DOCS.rglob("*.md")):
        target = path.relative_to(DOCS).as_posix()
        found[target] = _converted(path, target)
    entries = reference.pages()
    found["api.md"] = _linked_to_reference(found["api.md"], entries)
    found |= {f"reference/{name}.md": text for name, text in entries.items()}
    for name, runs in load(ROOT / RUNS).items():
        found[f"tables/{name}.md"] = full_page(name, runs).replace("<details>", '<details markdown="1">')
    for name, text in families.full_pages(families.load()).items():
        found[f"tables/{name}.md"] = text
    return found


def navigation(entries: dict[str, str]) -> list[Any]:
    """The menu. Pages of the reference and the tables have their own titles."""

    def below(folder: str) -> list[str]:
        return [name for name in entries if name.startswith(f"{folder}/")]

    return [
        {"Home": "index.md"},
        {
            "Guides": [
                {"Converting a model": "converting.md"},
                {"Layers and optimizers": "layers.md"},
                {"JAX": "jax.md"},
                {"Coming from other libraries": "coming-from.md"},
                {"An operator of your own": "your-own-operator.md"},
                {"Recipes": "recipes.md"},
                {"Several GPUs": "distributed.md"},
                {"Serving": "serving.md"},
                {"A converted Keras transformer": "keras.md"},
                {"Building and installing": "building.md"},
            ]
        },
        {"API": ["api.md", *below("reference")]},
        {"Support": ["support.md", "families.md", *(name for name in below("tables") if "families" in name)]},
        {"Troubleshooting": "debugging.md"},
        {
            "Performance": [
                "performance.md",
                "benchmarks.md",
                {"All entries": [name for name in below("tables") if "families" not in name]},
                {"Notes on kernels": ["notes/README.md", *(x for x in below("notes") if x != "notes/README.md")]},
            ]
        },
        {
            "Contributing": [
                "CONTRIBUTING.md",
                "architecture.md",
                "adding-an-operator.md",
                "testing.md",
                "SECURITY.md",
                "CHANGELOG.md",
            ]
        },
    ]


def address(name: str) -> str:
    """An address in the project's metadata."""
    found = re.search(rf'^{name} = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    if not found:
        raise LookupError(f"pyproject.toml has no address {name}")
    return found[1]


def write() -> None:
    shutil.rmtree(FOLDER / "docs", ignore_errors=True)
    entries = pages()
    for name, text in entries.items():
        path = FOLDER / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for file in (*DOCS.rglob("*.png"), *DOCS.glob("*.css")):
        path = FOLDER / "docs" / file.relative_to(DOCS)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, path)
    configuration = {
        "INHERIT": os.path.relpath(THEME, FOLDER),
        "site_url": address("Documentation"),
        "repo_url": address("Repository"),
        "docs_dir": "docs",
        "site_dir": "html",
        "nav": navigation(entries),
    }
    (FOLDER / "mkdocs.yml").write_text(json.dumps(configuration, indent=1))


def _converted(path: Path, target: str) -> str:
    """A document without the marks of figures, with links for its place in the site."""
    text = MARKED.sub(lambda match: match[0].split("\n", 1)[1].rpartition("\n<!--")[0], path.read_text())

    def link(match: re.Match[str]) -> str:
        return f"{match[1]}{_address(path, target, match[2])}{match[3]}"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _address(page: Path, target: str, to: str) -> str:
    """A link of a document as the site needs it."""
    if re.match(r"(https?:|#|mailto:)", to):
        return to
    file, hash_sign, anchor = to.partition("#")
    path = Path(os.path.normpath(page.parent / file))
    if path.is_relative_to(DOCS) and path.suffix in (".md", ".png"):
        name = path.relative_to(DOCS).as_posix()
    elif path.parent == ROOT and path.name in AT_ROOT:
        name = AT_ROOT[path.name]
    else:
        return f"{address('Repository')}/blob/main/{path.relative_to(ROOT).as_posix()}"
    return os.path.relpath(name, Path(target).parent) + hash_sign + anchor


def _linked_to_reference(text: str, entries: dict[str, str]) -> str:
    """The index of the API with links to the reference in place of the sources."""
    places = {
        name: f"reference/{page}.md#{reference.anchor(name)}"
        for page, entry in entries.items()
        for name in re.findall(r"^## (.+)$", entry, re.M)
    }

    def link(match: re.Match[str]) -> str:
        first, rest = match.groups()
        full = rest if first == "fo" else f"{PACKAGES.get(first, first)}.{rest}"
        place = places.get(full) or places.get(full.rpartition(".")[2])
        return f"[`{first}.{rest}`]({place})" if place else match[0]

    return LISTED.sub(link, text)


if __name__ == "__main__":
    write()
    print(f"fusedops: the pages are in {FOLDER / 'docs'}")
