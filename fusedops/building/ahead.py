"""The build ahead of time: compiles and installs the bindings of the installed frameworks."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from fusedops.building import stubs
from fusedops.building.autograd import build_autograd, installed_torch
from fusedops.building.core import Cuda, add_core, announcement
from fusedops.building.cuda import NoCudaError, gpus_here
from fusedops.building.environment import show_site_packages
from fusedops.building.facts import remove_facts, write_facts
from fusedops.building.jax_library import add_jax
from fusedops.building.ninja import NinjaFile, alone
from fusedops.building.options import BuildError, Options
from fusedops.building.progress import progress
from fusedops.building.tf_library import add_tf
from fusedops.building.torch_extension import add_torch
from fusedops.loading import FRAMEWORKS, Framework, at_least

ADD = {"torch": add_torch, "tf": add_tf, "jax": add_jax}


def build(wanted: list[str], destination: Path) -> dict[str, str]:
    """Builds the bindings of the frameworks `wanted`, by default of all installed ones, into destination/fusedops.

    Also writes the type stubs of the functions. Returns the framework versions that were built against.
    """
    show_site_packages()
    try:
        versions = _build(wanted, destination)
    except BuildError as error:
        raise SystemExit(f"fusedops: {error}") from None
    stubs.write(destination / "fusedops")
    for name in wanted or FRAMEWORKS:
        print(outcome(FRAMEWORKS[name], versions.get(name), destination))
    return versions


def _build(wanted: list[str], destination: Path) -> dict[str, str]:
    options = Options.from_environment()
    versions = find_frameworks(wanted)
    cuda, reason = None, None
    try:
        cuda = Cuda.find(options, gpus_here)
    except NoCudaError as error:
        reason = str(error)
    say = partial(print, flush=True)
    say(announcement(cuda, reason))
    # Release and debug builds install into the same folder: they share one lock.
    with alone(options.folder.parent, say):
        ninja = NinjaFile(options.folder)
        objects = add_core(ninja, options, cuda)
        libraries = {
            name: ADD[name](ninja, options, version, objects, cuda.toolkit if cuda else None)
            for name, version in versions.items()
        }
        with progress(say, verbose=True) as show:
            warnings = ninja.run(options.jobs, show=show)
            if "torch" in libraries:
                torches = (*options.torch_headers, installed_torch())
                libraries["torch"] += build_autograd(ninja, options, torches, libraries["torch"][0], show, say)
        if warnings:
            log = options.folder / "warnings.log"
            log.write_text(f"{warnings}\n")
            say(f"fusedops: warnings of the compilers are in {log}")
        for name, version in versions.items():
            folder = destination / "fusedops" / name
            _install(libraries[name], folder)
            write_facts(folder, libraries[name], version=version, options=options, cuda=cuda, reason=reason)
    return versions


def outcome(framework: Framework, version: str | None, destination: Path) -> str:
    """A sentence on the result; for a built binding with the library's path, which tf.load_op_library takes."""
    if not version:
        return f"fusedops.{framework.name}: not built, because {framework.title} is not installed"
    library = (destination / "fusedops" / framework.name / framework.files[0]).resolve()
    return f"fusedops.{framework.name}: built for {framework.title} {version}: {library}"


def find_frameworks(wanted: list[str]) -> dict[str, str]:
    """The installed versions of the frameworks `wanted`, by default of all installed ones."""
    versions = {}
    for framework in FRAMEWORKS.values():
        version = framework.installed()
        if wanted and framework.name not in wanted:
            continue
        if version and not at_least(version, framework.oldest):
            raise BuildError(
                f"{framework.title} {framework.oldest} or newer is needed; {version} is installed. "
                f"Run: pip install --upgrade {framework.module}; then this again"
            )
        if version:
            versions[framework.name] = version
        elif wanted:
            raise BuildError(f"{framework.title} is not installed. Run: pip install {framework.module}")
    if not versions:
        raise BuildError(
            "it is built for the frameworks that are installed, and none of PyTorch, TensorFlow and JAX is. Run: "
            "pip install torch, tensorflow or jax, or several; then this again (other tools than pip, such as uv, "
            "hide what is installed from a build: add --no-build-isolation)"
        )
    return versions


def _install(libraries: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries:
        installed = folder / library.name
        if not installed.exists() or installed.stat().st_mtime_ns != library.stat().st_mtime_ns:
            remove_facts(folder)
            # An atomic replacement: a process that has loaded the old file keeps its mapping.
            new = installed.with_suffix(".new")
            shutil.copy2(library, new)
            os.replace(new, installed)
    for old in {*folder.glob("*.so")} - {folder / library.name for library in libraries}:
        old.unlink()  # built for another version of torch
