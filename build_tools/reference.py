"""`make reference`: docs/api.md, from the docstrings and signatures of what users call."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"

INTRODUCTION = """# API reference

`make reference` writes this page from the docstrings, which `help` shows as well. In the examples, `fo` is
`fusedops.torch` or `fusedops.tf`, `fnn` is `fusedops.torch.nn`, and `fk` is `fusedops.tf.keras`.

| | |
| --- | --- |
| [Functions](#functions) | the same in both frameworks |
| [Operators of one's own](#operators-of-ones-own) | from source; from [an expression](#elementwise): a function |
| [Layers for PyTorch](#layers-for-pytorch), [layers for Keras](#layers-for-keras) | subclasses of the framework's own |
| [Optimizers for PyTorch](#optimizers-for-pytorch), [optimizers for Keras](#optimizers-for-keras) | likewise |
| [Conversion](#conversion) | of a whole model, in one line; what it brings |
| [Configuration](#configuration) | what is built, and where it is |

## What holds for every function

- **Devices:** CPU and CUDA. The kernel runs on the device of the tensors, on the framework's current stream.
- **Dtypes:** float64, float32, float16 and bfloat16. The compute dtype is float64 for float64, and float32 for all
  others; 16-bit results are rounded once. Each gradient has the dtype of its input.
- **Layout:** any strides are accepted. Strided rows and transposed matrices are read in place. Results are contiguous.
- **Sizes:** from 0 to more than 2³¹ elements, at any alignment.
- **Determinism:** the same inputs give the same bits in every run, with any number of threads, and in both frameworks
  on the same kind of device. Functions over rows are batch-invariant: a row's result does not depend on other rows.
- **Derivatives:** reverse mode, forward mode and second derivatives.
- **NaN and infinity:** as the formula gives them in the compute dtype.
- **Errors:** raised before anything is launched, with the same sentence in both frameworks, such as
  `fusedops.rms_norm: weight must have shape [8], the last dimension of x; got [7]`.

The frameworks differ in this:

| | PyTorch | TensorFlow |
| --- | --- | --- |
| arguments | tensors on one device | tensors and what `tf.convert_to_tensor` takes; a last argument, `name=None` |
| an invalid tensor raises | `RuntimeError` | `tf.errors.InvalidArgumentError`, or `ValueError` while tracing |
| bare operator | `torch.ops.fusedops.rms_norm` | `FusedopsRmsNorm`, from the library at `fusedops.tf.library_path()` |
| autocast | products and attention in its dtype, the others in that of x or, if they refuse a mix, the widest | none |
| symbolic tensors | of `torch.compile` and `torch.export` | of `tf.function` and of Keras's functional models |"""

# Of a docstring, such as "Args:": a line that ends in a colon, and what is indented below it.
SECTION = re.compile(r"^([A-Z][\w ]*):\n((?: .*\n|\n(?= ))+)", re.M)
_PROSE = ("Returns", "Gradient", "PyTorch", "TensorFlow", "Example")  # sections made of sentences; the others are lists


def page() -> str:
    import fusedops.tf.keras  # here, since a single framework is enough for the rest of this file
    import fusedops.torch.nn
    import fusedops.torch.optim

    nn, keras, optim = fusedops.torch.nn, fusedops.tf.keras, fusedops.torch.optim
    layers = [name for name in keras.__all__ if inspect.isclass(getattr(keras, name))]
    conversion = {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in (fusedops.torch, keras)
        for name in ("convert", "revert")
    }
    conversion["fusedops.torch.explain"] = fusedops.torch.explain
    configuration = {
        "fusedops.show_config": fusedops.show_config,
        "fusedops.tf.library_path": fusedops.tf.library_path,
        "fusedops.torch.jit.load": fusedops.torch.jit.load,
    }
    return (
        "\n\n".join(
            [
                INTRODUCTION,
                *_section("Functions", _members(fusedops.torch, fusedops.torch.functions.__all__, prefix="")),
                *_section("Operators of one's own", {"load": fusedops.torch.load}),
                *_section("Layers for PyTorch", _members(nn, nn.__all__)),
                *_section("Layers for Keras", _members(keras, layers)),
                *_section("Optimizers for PyTorch", _members(optim, optim.__all__)),
                *_section("Optimizers for Keras", _members(keras.optimizers, keras.optimizers.__all__)),
                *_section("Conversion", conversion),
                *_section("Configuration", configuration),
            ]
        )
        + "\n"
    )


def _members(module: ModuleType, names: list[str], prefix: str | None = None) -> dict[str, Any]:
    prefix = f"{module.__name__}." if prefix is None else prefix
    return {prefix + name: getattr(module, name) for name in sorted(names)}


def _section(title: str, members: dict[str, Any]) -> list[str]:
    """A table of the members, and each of them in full."""
    rows = [f"| [`{name}`](#{_anchor(name)}) | {_summary(member)} |" for name, member in members.items()]
    table = "\n".join(["| name | what it does |", "| --- | --- |", *rows])
    return [f"## {title}", table, *(_entry(name, member) for name, member in members.items())]


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return heading.lower().replace(".", "")


def _summary(member: Any) -> str:
    first, _, _ = _description(member).partition("\n\n")
    return first.replace("\n", " ").replace("|", "\\|")


def _description(member: Any) -> str:
    return inspect.getdoc(member) or ""


def _entry(name: str, member: Any) -> str:
    call = name.rpartition(".")[2] + _signature(member)
    return f"### {name}\n\n```python\n{call}\n```\n\n" + _markdown(_description(member))


def _signature(member: Any) -> str:
    """Without annotations, which the description says in words; of a class, only if the constructor is its own."""
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
    """Paragraphs, of which later lines may be indented, as in a source; and code, which is indented from its start."""
    paragraphs = text.strip("\n").split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else re.sub(r"\n +", "\n", p) for p in paragraphs)


def _prose(title: str, body: str) -> str:
    sentences, prompt, code = body.partition(">>> ")
    example = f"```pycon\n{prompt}{code}\n```" if prompt else ""
    return "\n\n".join(filter(None, [f"**{title}:** {sentences}".rstrip(), example]))


def _list(title: str, body: str) -> str:
    """`name: text` in each line, continued by lines that are indented."""
    entries = [entry.partition(": ") for entry in re.split(r"\n(?=\S)", body)]
    code = "" if title == "Raises" else "`"  # which says in words where an error is raised
    return "\n".join([f"**{title}:**", "", *(f"- {code}{name}{code}: {text}" for name, _, text in entries)])


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
