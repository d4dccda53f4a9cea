"""`make reference`: writes a page per family of functions, layers and optimizers, from docstrings and signatures."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from fusedops import functions

FOLDER = Path(__file__).resolve().parents[1] / "build" / "reference"

# A section of a docstring, such as "Args:": a line that ends in a colon, and the indented lines below it.
SECTION = re.compile(r"^([A-Z][\w ]*):\n((?: .*\n|\n(?= ))+)", re.M)
_PROSE = ("Returns", "Gradient", "PyTorch", "TensorFlow", "Example")  # sections of prose; the others are lists


def pages() -> dict[str, str]:
    """The texts of the pages, by name."""
    import fusedops.tf.keras  # imported here because the other functions of this file need only one framework
    import fusedops.torch.distributed
    import fusedops.torch.nn
    import fusedops.torch.optim

    nn, keras, optim = fusedops.torch.nn, fusedops.tf.keras, fusedops.torch.optim
    distributed = fusedops.torch.distributed
    layers = [name for name in keras.__all__ if inspect.isclass(getattr(keras, name))]
    conversion = {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in (fusedops.torch, keras)
        for name in ("convert", "revert")
    }
    conversion["fusedops.torch.explain"] = fusedops.torch.explain
    conversion["fusedops.torch.graphed"] = fusedops.torch.graphed
    configuration = {
        "fusedops.show_config": fusedops.show_config,
        "fusedops.tf.library_path": fusedops.tf.library_path,
        "fusedops.torch.jit.load": fusedops.torch.jit.load,
    }
    families = {
        family.__name__.rpartition(".")[2]: _page(
            inspect.getdoc(family) or "",
            {f.__name__: f for f in functions.PUBLIC if f.__module__ == family.__name__},
        )
        for family in functions.FAMILIES
    }
    return {
        **families,
        "load": _page("Operators from source files", {"load": fusedops.torch.load}),
        "layers-torch": _page("Layers for PyTorch", _members(nn, nn.__all__)),
        "layers-keras": _page("Layers for Keras", _members(keras, layers)),
        "optimizers-torch": _page("Optimizers for PyTorch", _members(optim, optim.__all__)),
        "optimizers-keras": _page("Optimizers for Keras", _members(keras.optimizers, keras.optimizers.__all__)),
        "distributed": _page("Several GPUs", _members(distributed, distributed.__all__)),
        "conversion": _page("Conversion", conversion),
        "configuration": _page("Configuration", configuration),
    }


def _members(module: ModuleType, names: list[str]) -> dict[str, Any]:
    return {f"{module.__name__}.{name}": getattr(module, name) for name in sorted(names)}


def _page(title: str, members: dict[str, Any]) -> str:
    """A table of the members, followed by the full text of each."""
    rows = [f"| [`{name}`](#{anchor(name)}) | {_summary(member)} |" for name, member in members.items()]
    table = "\n".join(["| name | what it does |", "| --- | --- |", *rows])
    entries = [_entry(name, member) for name, member in members.items()]
    return "\n\n".join([f"# {title.rstrip('.')}", table, *entries]) + "\n"


def anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return heading.lower().replace(".", "")


def _summary(member: Any) -> str:
    first, _, _ = _description(member).partition("\n\n")
    return first.replace("\n", " ").replace("|", "\\|")


def _description(member: Any) -> str:
    shown = functions.whole_description(member) if member in functions.PUBLIC else inspect.getdoc(member)
    return (shown or "").rstrip()


def _entry(name: str, member: Any) -> str:
    call = textwrap.fill(name.rpartition(".")[2] + _signature(member), 88, subsequent_indent=" " * 4)
    return f"## {name}\n\n```python\n{call}\n```\n\n" + _markdown(_description(member))


def _signature(member: Any) -> str:
    """The signature without annotations, since the description states types; "(...)" for an inherited constructor."""
    if inspect.isclass(member) and "__init__" not in vars(member):
        return "(...)"
    signature = inspect.signature(member)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _markdown(description: str) -> str:
    parts = SECTION.split(description + "\n")
    written = [_sentences(parts[0])]
    for title, body, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        body = textwrap.dedent(body).strip("\n")
        written.append(_prose(title, body) if title in _PROSE else _list(title, body))
        written.append(_sentences(rest))
    return "\n\n".join(filter(None, written))


def _sentences(text: str) -> str:
    """Joins the lines of each paragraph, whose later lines may be indented; indented code stays as it is."""
    paragraphs = text.strip("\n").split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else re.sub(r"\n +", "\n", p) for p in paragraphs)


def _prose(title: str, body: str) -> str:
    sentences, prompt, code = body.partition(">>> ")
    example = f"```pycon\n{prompt}{code}\n```" if prompt else ""
    return "\n\n".join(filter(None, [f"**{title}:** {sentences}".rstrip(), example]))


def _list(title: str, body: str) -> str:
    """A list of `name: text` entries; indented lines continue an entry."""
    entries = [entry.partition(": ") for entry in re.split(r"\n(?=\S)", body)]
    code = "" if title == "Raises" else "`"  # Raises states conditions in prose
    return "\n".join([f"**{title}:**", "", *(f"- {code}{name}{code}: {text}" for name, _, text in entries)])


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text)
    print(f"fusedops: the reference is in {FOLDER}")


if __name__ == "__main__":
    main()
