"""The JAX binding: _ffi.so, the handlers of XLA's custom call with the core's objects.

It uses neither Python nor C++ of jaxlib, only the C headers of XLA's interface to handlers. One file serves every
jaxlib from the version of these headers on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fusedops.building.core import CORE
from fusedops.building.cuda import Toolkit
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import BuildError, Options

BINDING = Path("jax_binding")
XLA_BINDING = Path("xla_binding")  # shared with TensorFlow


def add_jax(
    ninja: NinjaFile, options: Options, version: str, objects: Sequence[Path], toolkit: Toolkit | None
) -> list[Path]:
    """Adds the library to `ninja`. `version`, the installed JAX's, is part of the command: a new one rebuilds."""
    includes = [f"-I{CORE}", f"-I{XLA_BINDING}", "-isystem", str(_headers()), f"-DFUSEDOPS_JAX={version}"]
    compile_cc = [*options.cxx, "-std=c++20", *options.host_flags, "-Wall", "-Wextra", *includes]
    ninja.rule("jax_cc", [*compile_cc, "-c", "$in", "-o", "$out"], description="c++ $in for JAX", headers=True)
    sources = [*ninja.sources(XLA_BINDING, "*.cc"), *ninja.sources(BINDING, "*.cc")]
    compiled = [ninja.build(options.folder / "jax" / f"{source}.o", "jax_cc", [source]) for source in sources]
    cudart: list[Path | str] = [toolkit.cudart, "-ldl", "-lrt", "-lpthread"] if toolkit else []
    link = [*options.cxx, "-shared", "-o", "$out", "$in", "-Wl,--exclude-libs,ALL,-Bsymbolic", *cudart]
    ninja.rule("jax_link", link, description="link $out")
    return [ninja.build(options.folder / "lib/fusedops/jax/_ffi.so", "jax_link", [*compiled, *objects])]


def _headers() -> Path:
    """The folder that jax.ffi.include_dir() names, found without importing JAX."""
    spec = importlib.util.find_spec("jaxlib")
    folders = spec.submodule_search_locations if spec else None
    found = [Path(folder, "include") for folder in folders or ()]
    if not found or not found[0].is_dir():
        raise BuildError(
            "JAX is installed without jaxlib's headers. Run: pip install --upgrade jaxlib; then this again"
        )
    return found[0]
