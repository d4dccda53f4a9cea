"""Builds the bindings and puts them into place."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fusedops
from build_tools import cuda
from build_tools.core import Cuda, add_core
from build_tools.environment import show_site_packages
from build_tools.ninja import NinjaFile
from build_tools.options import Options
from build_tools.tf_library import add_tf
from build_tools.torch_extension import add_torch
from fusedops.loading import FRAMEWORKS, Framework, at_least

ADD = {"torch": add_torch, "tf": add_tf}


def build(wanted: list[str], destination: Path) -> dict[str, str]:
    """Builds the bindings of the frameworks `wanted` that are installed, or of all, and puts them into
    destination/fusedops. Returns the versions built against, by framework."""
    show_site_packages()
    options = Options.from_environment()
    versions = _versions(wanted)
    toolkit, reason = _cuda(options)
    with _alone(options.folder):
        ninja = NinjaFile(options.folder)
        objects = add_core(ninja, options, toolkit)
        libraries = {
            name: ADD[name](ninja, options, version, objects, toolkit and toolkit.toolkit)
            for name, version in versions.items()
        }
        ninja.run(options.jobs)
        for name, version in versions.items():
            facts = {
                "fusedops": fusedops.__version__,
                "framework": version,
                "cuda": toolkit.toolkit.version if toolkit else None,
                "without_cuda": reason,
                "architectures": [str(a) for a in toolkit.architectures] if toolkit else [],
                "cpu_flags": options.cpu_flags,
                "build_type": options.build_type,
            }
            _install(libraries[name], facts, destination / "fusedops" / name)
    for name in wanted or FRAMEWORKS:
        print(outcome(FRAMEWORKS[name], versions.get(name), destination))
    return versions


def outcome(framework: Framework, version: str | None, destination: Path) -> str:
    """What came of building a binding; if it is there, with the path that tf.load_op_library takes."""
    if not version:
        return f"fusedops.{framework.name}: not built, because {framework.title} is not installed"
    library = (destination / "fusedops" / framework.name / framework.files[0]).resolve()
    return f"fusedops.{framework.name}: built for {framework.title} {version}: {library}"


def _versions(wanted: list[str]) -> dict[str, str]:
    versions = {}
    for framework in FRAMEWORKS.values():
        version = framework.installed()
        if wanted and framework.name not in wanted:
            continue
        if version and not at_least(version, framework.oldest):
            raise SystemExit(
                f"fusedops: {framework.title} {framework.oldest} or newer is needed; {version} is installed"
            )
        if version:
            versions[framework.name] = version
        elif wanted:
            raise SystemExit(f"fusedops: {framework.title} is not installed. Run: pip install {framework.module}")
    if not versions:
        raise SystemExit(
            "fusedops: neither PyTorch nor TensorFlow is installed, and it is built for them. "
            "Run: pip install torch, or pip install tensorflow, or both; then this again"
        )
    return versions


def _cuda(options: Options) -> tuple[Cuda | None, str | None]:
    try:
        found = Cuda(cuda.find_toolkit(options), cuda.architectures(options), cuda.find_cutlass())
    except cuda.NoCudaError as error:
        print(f"fusedops: building for the CPU only, because {error}", flush=True)
        return None, str(error)
    names, version = ", ".join(map(str, found.architectures)), found.toolkit.version
    print(
        f"fusedops: building for the CPU and, with CUDA {version}, for GPUs of compute capability {names}", flush=True
    )
    return found, None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two builds in one folder wait for each other."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(libraries: list[Path], facts: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        installed = folder / library.name
        if not installed.exists() or installed.stat().st_mtime_ns != library.stat().st_mtime_ns:
            # Replaced in one step: a process that has loaded the old one keeps it.
            new = installed.with_suffix(".new")
            shutil.copy2(library, new)
            os.replace(new, installed)
    facts = {**facts, "bytes": {library.name: library.stat().st_size for library in libraries}}
    (folder / "_build.json").write_text(json.dumps(facts, indent=2) + "\n")
