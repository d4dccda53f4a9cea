"""Compiles a library of user-defined operators at run time and caches it: core/declaration/library.h.

The library is independent of the frameworks. Its sources are compiled like those of the core. The compilers are started
directly, so no shell interprets file names.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fusedops import cache
from fusedops.building import includes
from fusedops.building.architectures import Architecture, choose
from fusedops.building.binding import CUDART_NEEDS
from fusedops.building.core import CORE, FOR_LIBRARIES, cpp, for_gpus, nvcc
from fusedops.building.core import sources as sources_of
from fusedops.building.cuda import NoCudaError, Toolkit, find_toolkit, gpus_here
from fusedops.building.ninja import alone
from fusedops.building.options import BuildError, Options

_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Library:
    """The inputs of a compilation, as they were read."""

    sources: tuple[Path, ...]
    folders: tuple[Path, ...]  # include folders
    options: Options
    key: str  # hash of all inputs except the compilers


@dataclass(frozen=True)
class _Gpus:
    toolkit: Toolkit
    architectures: Sequence[Architecture]


def read(sources: Sequence[Path]) -> Library:
    """Reads the library of these source files, which are absolute paths."""
    options = Options.from_environment()
    core = _core()
    found = includes.find(sources, core)
    headers = sorted(path for suffix in ("h", "cuh") for path in core.rglob(f"*.{suffix}"))
    core_files = [
        (str(path.relative_to(core)), path.read_bytes()) for path in (*headers, *(core / x for x in FOR_LIBRARIES))
    ]
    key = hashlib.sha256()
    for word in (*cpp(options, with_kernels=False), options.processor, str(len(sources))):
        key.update(word.encode() + b"\0")
    for name, text in (*found.texts, *core_files):
        key.update(f"{name}\0{len(text)}\0".encode() + text)
    return Library(tuple(sources), found.folders, options, key.hexdigest()[:32])


def _core() -> Path:
    return sources_of(CORE) / CORE


@contextmanager
def compiled(library: Library) -> Iterator[Path]:
    """The compiled library. The file may be deleted when the context ends."""
    gpus = _gpus(library)
    version = _version(library.options)
    folder = _folder(library)
    if not version:
        yield _without_compiler(library, folder)
        return
    tools = [version, *([gpus.toolkit.version, *map(str, gpus.architectures)] if gpus else [])]
    name = hashlib.sha256("\0".join(tools).encode()).hexdigest()[:16] + ".so"
    if folder and _is_whole(folder / name):
        yield folder / name
        return
    if folder and _can_write(folder):
        with alone(folder, lambda text: None):
            if not _is_whole(folder / name):  # another process may have compiled it meanwhile
                for stale in folder.glob("compiling-*"):  # of a process that was killed
                    shutil.rmtree(stale, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder) as temporary:
                    built = _compile(library, gpus, Path(temporary))
                    if read(library.sources).key != library.key:  # the cache would hold it under the wrong key
                        raise BuildError("a source was changed while it was compiled; load it again")
                    built.write_bytes(_sealed(built.read_bytes(), folder / name))
                    built.chmod(0o700)
                    os.replace(built, folder / name)
        yield folder / name
        return
    with tempfile.TemporaryDirectory(prefix="fusedops-") as temporary:
        yield _compile(library, gpus, Path(temporary))


def _without_compiler(library: Library, folder: Path | None) -> Path:
    """The largest cached library, since one with CUDA kernels is larger than one without."""
    built = sorted(folder.glob("*.so"), key=lambda file: file.stat().st_size) if folder else []
    for file in reversed(built):
        if _is_whole(file):
            return file
    compiler = library.options.cxx[0]
    raise BuildError(f"the compiler {compiler} was not found, or does not run; install g++ 11 or newer, or set CXX")


def _folder(library: Library) -> Path | None:
    """The folder of the library, beside the kernels of expressions. Raises BuildError if others can write there."""
    whole = cache.folder()
    if whole is None:
        return None
    folder = whole / "libraries" / library.key
    refused = cache.fault(whole, folder.parent, folder, *folder.glob("*.so"))
    if refused:
        raise BuildError(refused)
    return folder


def _can_write(folder: Path) -> bool:
    try:
        cache.create(folder)
        with tempfile.TemporaryFile(dir=folder), open(folder / "fusedops.lock", "a"):
            return True
    except OSError:
        return False


# A cached file ends with a digest of its content and name, so a damaged or foreign file is never loaded.
def _sealed(binary: bytes, file: Path) -> bytes:
    return binary + hashlib.sha256(f"{file.parent.name}/{file.name}".encode() + binary).digest()


def _is_whole(file: Path) -> bool:
    try:
        text = file.read_bytes()
    except OSError:
        return False
    return len(text) > _DIGEST and _sealed(text[:-_DIGEST], file) == text


def _version(options: Options) -> str:
    """The output of the compiler's --version; empty if there is no compiler."""
    try:
        return subprocess.run([*options.cxx, "--version"], capture_output=True, text=True, errors="replace").stdout
    except OSError:
        return ""


_gpus_here = functools.cache(gpus_here)


def _gpus(library: Library) -> _Gpus | None:
    """The toolkit and architectures for the kernels; None if they are left out."""
    if not any(source.suffix == ".cu" for source in library.sources):
        return None
    try:
        toolkit = find_toolkit(library.options)
        choice = choose(library.options, toolkit, _gpus_here)
    except NoCudaError:
        return None
    return _Gpus(toolkit, choice.architectures)


def _compile(library: Library, gpus: _Gpus | None, folder: Path) -> Path:
    """Compiles the library in `folder`, with sources behind links in it, because nvcc passes paths to a shell."""
    options = library.options
    places = dict.fromkeys((*library.folders, *(source.parent for source in library.sources)), "")
    places = {place: f"folder{i}" for i, place in enumerate(places)}
    for place, link in {_core(): str(CORE), **places}.items():
        (folder / link).symlink_to(place)

    def run(command: Sequence[str]) -> None:
        english = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, cwd=folder, env=english, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise BuildError(_compiler_error(done.stderr + done.stdout, places))

    search = [f"-I{places[place]}" for place in library.folders]
    compile_cpp = [*cpp(options, gpus is not None), *search]
    commands = [[*compile_cpp, "-c", f"{CORE}/{source}"] for source in FOR_LIBRARIES]
    for source in library.sources:
        file = f"{places[source.parent]}/{source.name}"
        if source.suffix == ".cpp":
            commands.append([*compile_cpp, "-c", file])
        elif gpus:
            compile_cu = [*nvcc(options, gpus.toolkit, search), *for_gpus(options, gpus.architectures)]
            commands.append([*compile_cu, "-c", file])
    objects = [f"{i}.o" for i in range(len(commands))]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, ([*command, "-o", made] for command, made in zip(commands, objects, strict=True))))
    cudart = [str(gpus.toolkit.cudart), *(f"-l{name}" for name in CUDART_NEEDS)] if gpus else []
    run([*options.cxx, "-shared", "-Wl,-z,defs", "-o", "library.so", *objects, *cudart])
    return folder / "library.so"


def _compiler_error(output: str, places: Mapping[Path, str]) -> str:
    """The compiler's output, preceded by its first error."""
    for place, link in places.items():
        output = re.sub(rf"\b{link}/", lambda found, place=place: f"{place}/", output)  # type: ignore[misc]
    errors = re.findall(r"^.*(?:error|multiple definition|undefined reference).*$", output, re.M)
    first = errors[0].strip() if errors else "it printed no error"
    if undeclared := _UNDECLARED.search(output):  # g++ reports it as a throw in a header of fusedops
        first = "{place}: error: {name}: {sentence}".format_map(undeclared.groupdict())
    return f"the compiler failed: {first}\n\n{output}"


# g++'s output for a name that is looked up in a signature, as by `attribute_of`: the place in the source, and the
# sentence that signature.h throws.
_UNDECLARED = re.compile(
    r"^(?P<place>\S+:\d+:\d+): +in 'constexpr' expansion of .*(?P<name>\"\w+\").*\n"
    r"(?:.* in 'constexpr' expansion of .*\n)*"
    r".*signature\.h:.* error: .*\n.* throw \"(?P<sentence>.*)\";",
    re.M,
)
