"""`show_config`: versions, bindings, and reasons for missing ones."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

from fusedops.loading import FRAMEWORKS, PACKAGE, Framework, autograd_fault, fault, other_copies
from fusedops.version import VERSION


def show_config() -> None:
    """Prints the versions, which bindings are built, for which GPU architectures, and why one is missing.

    No framework is imported.
    """
    print(f"fusedops {VERSION} in {PACKAGE}")
    for folder in other_copies():
        print(f"another one, which is not the one imported, in {folder}")
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for framework in FRAMEWORKS.values():
        print()
        for line in _lines(framework):
            print(line)


def _lines(framework: Framework) -> list[str]:
    package = f"fusedops.{framework.name}"
    try:
        installed, build, problem = framework.installed(), framework.build(), fault(framework)
    except Exception as error:  # a broken framework must not hide the report on the others
        return [f"{package}: broken ({type(error).__name__}: {error})"]
    lines = [
        f"{package}: {'not usable' if problem else 'ready'}",
        f"  {framework.title:<10} {installed or 'not installed'}",
    ]
    if framework.name == "tf":
        lines.append(f"  Keras      {_keras()}")
    if build:
        lines += [
            f"  library    {framework.folder / framework.files[0]}",
            f"  built for  {framework.title} {build['framework']}, {build['build_type']}",
            f"  CPU        {build['cpu_flags'] or 'any'}",
            f"  GPU        {_gpu(build)}",
        ]
    if problem:
        return [*lines, f"  {problem}"]
    if framework.name == "tf":
        lines.append(f"  XLA        {_loaded('fusedops.tf.xla', fault(framework, framework.files[1])) or 'ready'}")
    if framework.name == "torch":
        without = _loaded("fusedops.torch.autograd_library", autograd_fault(str(installed)))
        lines.append(f"  autograd   {f'in Python: {without}' if without else 'in C++'}")
    return lines


def _loaded(module: str, before: str | None) -> str | None:
    """The reason why a second library is not used: its own once it was loaded, else `before`."""
    loaded = sys.modules.get(module)
    return loaded.fault if loaded else before


def _keras() -> str:
    try:
        return metadata.version("keras")
    except metadata.PackageNotFoundError:
        return "not installed"


def _gpu(build: dict[str, Any]) -> str:
    if not build["cuda"]:
        return f"no kernels, because at the build {build['without_cuda']}"
    return f"compute capability {', '.join(build['architectures'])}, CUDA {build['cuda']}"
