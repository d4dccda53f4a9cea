"""The GPU architectures to compile for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fusedops.building.cuda import NoCudaError, Toolkit
from fusedops.building.options import BuildError, Options

NO_GPU = (
    "no GPU was found (to compile for GPUs elsewhere, set their compute capability: FUSEDOPS_CUDA_ARCHS=9.0 make build)"
)
OLDEST = 8
# Architecture names allowed in TORCH_CUDA_ARCH_LIST, as in torch.utils.cpp_extension.
NAMED = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0 5.2+PTX",
    "Pascal": "6.0 6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0 8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0 10.3 12.0 12.1+PTX",
}


@dataclass(frozen=True)
class Architecture:
    number: str  # "90", "90a"
    ptx: bool  # True if PTX is embedded as well, which the driver compiles for later GPUs

    def __str__(self) -> str:
        major, minor, variant = re.fullmatch(r"(\d+)(\d)([af]?)", self.number).groups()  # type: ignore[union-attr]
        return f"{major}.{minor}{variant}" + "+PTX" * self.ptx

    @property
    def flags(self) -> list[str]:
        codes = [f"sm_{self.number}"] + [f"compute_{self.number}"] * self.ptx
        return [f"-gencode=arch=compute_{self.number},code={code}" for code in codes]


@dataclass(frozen=True)
class Choice:
    architectures: Sequence[Architecture]
    left_out: str = ""  # a sentence on found architectures that cannot be compiled for, and their source


def choose(options: Options, toolkit: Toolkit, gpus: Callable[[], Sequence[str]]) -> Choice:
    """The architectures that a variable lists ("8.0;9.0+PTX", "90"), else those of `gpus`.

    If nvcc cannot compile for an entry of FUSEDOPS_CUDA_ARCHS, it is an error. If it cannot compile for a GPU or an
    entry of TORCH_CUDA_ARCH_LIST, which is mostly set for other packages, that one is left out.

    Raises:
        NoCudaError: No architecture remains.
    """
    if options.architectures:
        found, problems = _read(options.architectures, toolkit)
        if problems:
            raise BuildError(
                f"FUSEDOPS_CUDA_ARCHS must list compute capabilities such as '8.0;9.0+PTX'; got {', '.join(problems)}"
            )
        return Choice(found)
    if options.torch_architectures:
        source, text = "TORCH_CUDA_ARCH_LIST", options.torch_architectures
    else:
        source, text = "the GPUs here", " ".join(gpus())
    if not text:
        raise NoCudaError(NO_GPU)
    found, problems = _read(text, toolkit)
    if not found:
        raise NoCudaError(f"nothing is left of {source} without {', '.join(problems)}")
    return Choice(found, f"left out of {source}: {', '.join(problems)}" if problems else "")


def _read(text: str, toolkit: Toolkit) -> tuple[list[Architecture], list[str]]:
    """The architectures that a list names, and its unusable entries, each with a reason."""
    found, problems = [], []
    for item, name in _items(text):
        parts = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)([af]?)(\+PTX)?", item)
        if not parts:
            problem = "no compute capability"
        elif int(parts[1]) < OLDEST:
            problem = f"older than {OLDEST}.0"
        elif toolkit.known and parts[1] + parts[2] not in toolkit.known:
            problem = f"unknown to CUDA {toolkit.version}"
        else:
            found.append(Architecture(parts[1] + parts[2] + parts[3], bool(parts[4])))
            continue
        problems.append(f"{item!r} of {name} ({problem})" if name else f"{item!r} ({problem})")
    return list(dict.fromkeys(found)), list(dict.fromkeys(problems))


def _items(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of a listed architecture and the name it was expanded from, or ""."""
    for word in re.split(r"[;,\s]+", text.strip(";, ")):
        name = word if word in NAMED else word.removesuffix("+PTX")
        if name in NAMED:
            yield from ((item, name) for item in NAMED[name].split())
        else:
            yield word, ""
