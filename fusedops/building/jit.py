"""The build at run time, if no prebuilt library matches the machine.

The core is compiled by our own ninja file, as in every other build: torch's would give all kernels the same flags and
link torch's CUDA libraries. torch.utils.cpp_extension.load then compiles the binding, links both and loads the library.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from fusedops import cache as caches
from fusedops import loading
from fusedops.building import binding, core
from fusedops.building.autograd import AUTOGRAD, build_autograd, installed_torch
from fusedops.building.core import CORE, Cuda, add_core, announcement
from fusedops.building.cuda import NoCudaError, NoCutlassError
from fusedops.building.facts import remove_facts, write_facts
from fusedops.building.ninja import NinjaFile, alone
from fusedops.building.options import BuildError, Options
from fusedops.building.progress import Show, progress, silent
from fusedops.version import VERSION

PACKAGE = "fusedops.torch"
FRAMEWORK = loading.FRAMEWORKS["torch"]
LIBRARY = FRAMEWORK.files[0]
FOLDERS = (CORE, binding.BINDING, AUTOGRAD)  # source folders that are part of an installed package


def load(verbose: bool = True) -> ModuleType:
    """Compiles the operators for this machine, once, and imports fusedops.torch with them.

        import fusedops
        fo = fusedops.torch.jit.load()

    They are compiled for this CPU and, if nvcc is found, for the GPUs that torch sees, which takes minutes. The library
    is cached in torch's folder of extensions ($TORCH_EXTENSIONS_DIR or ~/.cache/torch_extensions). Every combination of
    versions of fusedops and torch, CPU, GPUs and options has its own folder, which may be deleted at any time. The
    folder is created with mode 0700. It is refused if another user can write to it, or owns it and is not root.

    Afterwards, `import fusedops.torch` works for the rest of the process. Later processes call `load` again, which then
    only loads. If several processes call it at once, one compiles and the others wait.

    A library that is already loaded is used instead, since operators can be registered only once in a process. So is an
    installed library that fits the machine.

    It needs ninja, setuptools and a C++20 compiler; for GPUs also the CUDA toolkit and CUTLASS's headers (`pip install
    --no-deps nvidia-cutlass`). It honours the variables of `make build`: CXX, CUDA, DEBUG, MAX_JOBS,
    FUSEDOPS_CUDA_ARCHS and FUSEDOPS_CPU_FLAGS, by default -march=native.

    Args:
        verbose: True to print the target, the progress, and the path of the cache.

    Returns:
        The package fusedops.torch.

    Raises:
        ImportError: PyTorch is missing or too old.
        RuntimeError: a tool is missing, or the compiler failed, with its output; or another user can change the folder.
    """

    def say(text: str) -> None:
        if verbose:
            print(text, flush=True)

    if PACKAGE in sys.modules:
        say(f"{PACKAGE} is loaded already, with {FRAMEWORK.folder / LIBRARY}")
        return sys.modules[PACKAGE]
    if loading.fault(FRAMEWORK):
        version = FRAMEWORK.installed()
        if version is None or not loading.at_least(version, FRAMEWORK.oldest):
            loading.library("torch")  # raises
        try:
            folder = _built(str(version), say, verbose)
        except BuildError as error:
            raise RuntimeError(f"fusedops.torch.jit.load: {error}") from None
        loading.use("torch", folder)
    return importlib.import_module(PACKAGE)


def _built(version: str, say: Callable[[str], None], verbose: bool) -> Path:
    """The folder of the library, which is built first if it does not exist."""
    options, cuda, reason = _wanted()
    sources = _sources()
    cache = _cache() / f"fusedops_{VERSION}_torch_{version}_{_key(sources, options, cuda)}"
    files = (cache / FRAMEWORK.files[0], cache / loading.autograd_file(version))
    refused = caches.fault(cache, *files, variable="TORCH_EXTENSIONS_DIR")
    if refused:
        raise BuildError(refused)
    if loading.fault(FRAMEWORK, folder=cache):
        caches.create(cache)
        say(announcement(cuda, reason))
        say(f"fusedops: in {cache}")
        with alone(cache, say), progress(say, verbose) as show:
            if loading.fault(FRAMEWORK, folder=cache):  # another process may have built it meanwhile
                remove_facts(cache)
                built = _build(cache, sources, options, cuda, show)
                for file in built:
                    file.chmod(0o700)
                write_facts(cache, built, version=version, options=options, cuda=cuda, reason=reason)
    say(f"fusedops: loading {cache / LIBRARY}")
    return cache


def _wanted() -> tuple[Options, Cuda | None, str | None]:
    """The options, the CUDA tools, and the reason if CUDA is left out."""
    import torch

    def gpus() -> list[str]:
        found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
        return [f"{major}.{minor}" for major, minor in sorted(found)]

    options = Options.from_environment(cpu_flags="-march=native")
    try:
        return options, Cuda.find(options, gpus), None
    except NoCutlassError as error:
        raise BuildError(f"{error}; CUDA=0 builds for the CPU only") from None
    except NoCudaError as error:
        return options, None, str(error)


def _sources() -> Path:
    return core.sources(*FOLDERS)


def _cache() -> Path:
    from torch.utils import cpp_extension

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()).resolve()


def _key(sources: Path, options: Options, cuda: Cuda | None) -> str:
    """A hash of everything the library depends on. The modules of this package determine the flags."""
    key = hashlib.sha256()
    folders = (*(sources / folder for folder in FOLDERS), Path(__file__).parent)
    for folder in folders:
        for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            key.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    settings = [options.build_type, options.cpu_flags, *options.cxx, options.processor]
    if cuda:
        settings += [cuda.toolkit.version, cuda.cutlass.version, *map(str, cuda.architectures)]
    key.update("\0".join(settings).encode())
    return key.hexdigest()[:12]


def _build(cache: Path, sources: Path, options: Options, cuda: Cuda | None, show: Show) -> list[Path]:
    """Builds the libraries and returns their paths."""
    for folder in FOLDERS:
        # A copy keeps the paths in commands relative, and a debugger finds the sources after an upgrade.
        shutil.rmtree(cache / folder, ignore_errors=True)
        shutil.copytree(sources / folder, cache / folder)
    ninja = NinjaFile(options.folder, cache)
    objects = add_core(ninja, options, cuda)
    steps = 0

    def show_core(done: int, core_steps: int, begun: str, running: Sequence[str] = ()) -> None:
        nonlocal steps
        steps = core_steps
        show(done, steps + 2, begun, running)

    def show_rest(done: int, begun: str) -> None:
        show(steps + done, steps + 2, begun, [begun])

    ninja.run(options.jobs, show=show_core)
    show_rest(0, f"{LIBRARY} by torch.utils.cpp_extension")
    _link(cache, options, objects, cuda)
    show_rest(1, "autograd in C++, if torch's headers fit")
    ninja = NinjaFile(options.folder / AUTOGRAD, cache)
    autograd = build_autograd(ninja, options, [installed_torch()], Path(LIBRARY), silent, lambda reason: None)
    show(steps + 2, steps + 2, "")
    return [cache / LIBRARY, *(cache / library for library in autograd)]


def _link(cache: Path, options: Options, objects: Sequence[Path], cuda: Cuda | None) -> None:
    from torch.utils import cpp_extension

    # A killed process leaves torch's lock file, on which torch would wait forever. `alone` excludes live processes.
    (cache / "lock").unlink(missing_ok=True)
    # Torch does not relink a library that is newer than its objects, even a damaged one. It does not compile twice in
    # one process, even if the first attempt failed.
    (cache / LIBRARY).unlink(missing_ok=True)
    name = LIBRARY.removesuffix(".so")
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)
    libraries = [f"-l{name}" for name in binding.CUDART_NEEDS] if cuda else []
    static = [shlex.quote(str(cuda.toolkit.cudart))] if cuda else []
    with _variables(binding.variables(options, cache)), _torch_reached_by_a_link(cache):
        try:
            # The commands run in `build_directory`; all paths are relative to it.
            cpp_extension.load(
                name,
                sorted(map(str, (cache / binding.BINDING).glob("*.cpp"))),
                extra_cflags=[*binding.flags(options), f"-I{CORE}"],
                extra_ldflags=[*map(str, objects), *static, *libraries, *binding.LINK],
                build_directory=str(cache),
                with_cuda=False,
                is_python_module=False,
            )
        except RuntimeError as error:
            raise BuildError(f"the compiler failed in {cache}\n{error}") from None


@contextmanager
def _torch_reached_by_a_link(cache: Path) -> Iterator[None]:
    """Replaces the path of torch's libraries by a link: torch does not quote it, and it may contain spaces."""
    from torch.utils import cpp_extension

    before = cpp_extension.TORCH_LIB_PATH
    link = cache / "torch_lib"
    link.unlink(missing_ok=True)
    link.symlink_to(before)
    cpp_extension.TORCH_LIB_PATH = link.name
    try:
        yield
    finally:
        cpp_extension.TORCH_LIB_PATH = before


@contextmanager
def _variables(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)
