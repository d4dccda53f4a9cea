"""User-defined operators: source files become functions of a framework, by the same code for both."""

from __future__ import annotations

import ctypes
import functools
import inspect
import keyword
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from fusedops import declarations
from fusedops.building import library as building
from fusedops.building.options import BuildError
from fusedops.declarations import Operator
from fusedops.gradients.registry import GRADIENTS, Formula, Gradient

Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Gradients = Mapping[str, Formula | tuple[Formula, Sequence[str]]]

_SUFFIXES = (".cpp", ".cu")
_MAX_LETTERS = 100


class _Library:
    """A library that this process has loaded, permanently. Its operators are in no other library."""

    def __init__(self, library: building.Library) -> None:
        with building.compiled(library) as file:
            try:
                self.binary = ctypes.CDLL(str(file))
            except OSError as error:
                raise BuildError(f"the compiled library does not load: {error}") from None
        if not hasattr(self.binary, "fusedops_library"):
            names = ", ".join(source.name for source in library.sources)
            raise _error("sources", "show their operators with FUSEDOPS_LIBRARY(...)", f"{names} without it")
        self.binary.fusedops_library.restype = ctypes.c_void_p
        self.gradients: dict[str, Gradient] | None = None  # None until a framework has its operators


_LIBRARIES: dict[str, _Library] = {}  # by the key of their sources
_LOCK = threading.RLock()


class Loader:
    """Loads libraries for one framework.

    Args:
        package: the framework's package. Loaded libraries become its modules.
        binding: the framework's library, with a core of its own.
        add: adds the operators of a library to that core and to the framework.
        operators: has every operator as an attribute.
        public: makes the public function from an operator's declaration and its function.
    """

    def __init__(
        self,
        package: str,
        binding: ctypes.CDLL,
        add: Callable[[Callable[[], Any]], None],
        operators: Any,
        public: Callable[[Operator, Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self.package, self.binding, self.add, self.operators, self.public = package, binding, add, operators, public
        self.modules: dict[str, str] = {}  # library keys by module name
        self.functions: dict[str, dict[str, Callable[..., Any]]] = {}  # by library key
        binding.fusedops_describe_library.restype = ctypes.c_char_p

    def load(self, name: str, sources: Sources, gradients: Gradients | None = None) -> ModuleType:
        """Compiles operators that source files declare, once, and returns a module with their functions.

            mine = fo.load("mine", ["square.cpp", "square.cu"])
            y = mine.square(x)

        The sources are written like an operator of fusedops, against the headers that the package carries.
        docs/your-own-operator.md has such an operator, and docs/adding-an-operator.md explains its parts. One of the
        sources shows the operators with FUSEDOPS_LIBRARY of core/declaration/library.h:

            FUSEDOPS_LIBRARY(&fusedops::square(), &fusedops::square_backward())

        Each becomes an operator like those of fusedops, in eager code and whatever compiles, differentiates or maps:
        `torch.ops.fusedops.square`, and TensorFlow's `FusedopsSquare`. They stay for as long as the process. One
        process may load them into several frameworks.

        The library is compiled for the CPU and, if there are .cu files and nvcc, for the GPUs here or those that
        FUSEDOPS_CUDA_ARCHS names. Without nvcc or a GPU the .cu files are left out: CUDA kernels must be declared as
        FUSEDOPS_CUDA_KERNEL. It is kept in `libraries` below $FUSEDOPS_CACHE_DIR, $XDG_CACHE_HOME/fusedops or
        ~/.cache/fusedops, and compiled again when a source, a header that one includes by a name in quotes, the
        headers of fusedops, the flags or the compiler are other ones, or the processor under -march=native. If several
        processes load it at once, one compiles and the others wait. It may be deleted at any time. Folders are created
        with mode 0700. One that another user owns, unless it is root, or can write to is refused.

        It needs a C++20 compiler, and none for what was compiled before. It honours the variables of `make build`: CXX,
        CUDA, DEBUG, MAX_JOBS, FUSEDOPS_CUDA_ARCHS and FUSEDOPS_CPU_FLAGS.

        Args:
            name: of the module, which is then `fo.<name>` as well.
            sources: the path of a .cpp file, or a list of paths of .cpp and .cu files. Headers are found beside the
                file that includes them, or in a folder above it, and those of fusedops as `core/...`.
            gradients: formulas for operators that declare no derivative, such as the second derivative of an operator
                that declares its first: by the operator's name, a function `formula(f, c, *dy)` that returns the
                gradients of inputs by name. fusedops/gradients/__init__.py says what `f` and `c` are. With a pair such
                as `(formula, ("dy", "x"))`, only these inputs and outputs are kept for it, otherwise all. If it returns
                the gradient of an input that there is not, the backward raises ValueError.

        Returns:
            A module with a function for each operator, which takes inputs by position and attributes by name. Saved
            outputs are left out of its results. The same sources give the same functions.

        Raises:
            ValueError, TypeError: an argument, a declaration, or the name of an operator that there is already.
            FileNotFoundError: there is no such source.
            RuntimeError: the compiler is missing, or has failed, with what it says; or another user can change the
                cache.
        """
        _check_name(name)
        try:
            made_of = building.read(_files(sources))
            with _LOCK:
                self._check_free(name, made_of.key)
                if made_of.key not in _LIBRARIES:
                    _LIBRARIES[made_of.key] = _Library(made_of)
                return self._module(name, made_of.key, gradients or {})
        except BuildError as error:
            raise RuntimeError(f"fusedops.load: {error}") from None

    def _check_free(self, name: str, key: str) -> None:
        """Raises if the name is taken. `find_spec` finds modules of the package that are not imported yet."""
        is_taken = hasattr(sys.modules[self.package], name) or find_spec(f"{self.package}.{name}") is not None
        if is_taken and self.modules.get(name) != key:
            what = "that of a library of other sources" if name in self.modules else "one that fusedops has"
            raise _error("name", "be new", f"{name!r}, {what}")

    def _module(self, name: str, key: str, gradients: Gradients) -> ModuleType:
        library = _LIBRARIES[key]
        described = self.binding.fusedops_describe_library(ctypes.c_void_p(library.binary.fusedops_library())).decode()
        if not described.startswith("["):
            raise ValueError(described)
        operators = declarations.operators(described)
        given = _checked(operators, gradients)
        if library.gradients is None:
            self._add(key, operators, given)
            library.gradients = given
        else:
            _check_same(library.gradients, given)
            self._add(key, operators, library.gradients)
        if name not in self.modules:
            names = [operator.name for operator in operators]
            module = ModuleType(f"{self.package}.{name}", f"Operators: {', '.join(names)}.")
            vars(module).update(self.functions[key], __all__=names)
            for function in self.functions[key].values():
                if function.__module__ == __name__:  # pickle finds it by its module
                    function.__module__ = module.__name__
            sys.modules[module.__name__] = module
            setattr(sys.modules[self.package], name, module)
            self.modules[name] = key
        return sys.modules[f"{self.package}.{name}"]

    def _add(self, key: str, operators: Sequence[Operator], gradients: Mapping[str, Gradient]) -> None:
        """Registers the formulas before the operators, whose addition looks them up."""
        if key in self.functions:
            return
        before = {name: GRADIENTS[name] for name in gradients if name in GRADIENTS}
        GRADIENTS.update(gradients)
        try:
            self.add(_LIBRARIES[key].binary.fusedops_library)
        except BaseException:
            for name in gradients:
                del GRADIENTS[name]
            GRADIENTS.update(before)
            raise
        self.functions[key] = {x.name: self.public(x, getattr(self.operators, x.name)) for x in operators}


def public(operator: Operator, call: Callable[..., Any]) -> Callable[..., Any]:
    """The function that users call: trailing optional inputs may be omitted, and saved outputs are dropped."""
    count = len(operator.inputs)
    needed = 1 + max(i for i, x in enumerate(operator.inputs) if x.kind != "optional")
    shown = [i for i, y in enumerate(operator.outputs) if not y.saved]

    def function(*inputs: Any, **attributes: Any) -> Any:
        if needed <= len(inputs) < count:
            inputs += (None,) * (count - len(inputs))
        results = call(*inputs, **attributes)
        if len(shown) == len(operator.outputs):
            return results
        return results[shown[0]] if len(shown) == 1 else tuple(results[i] for i in shown)

    parameter = inspect.Parameter
    inputs = [
        parameter(x.name, parameter.POSITIONAL_ONLY, default=None if i >= needed else parameter.empty)
        for i, x in enumerate(operator.inputs)
    ]
    attributes = [parameter(x.name, parameter.KEYWORD_ONLY, default=x.default) for x in operator.attributes]
    function.__signature__ = inspect.Signature([*inputs, *attributes])  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = operator.name
    function.__doc__ = f"Returns {', '.join(operator.outputs[i].name for i in shown)}."
    return function


def _error(argument: str, expected: str, got: str) -> ValueError:
    return ValueError(f"fusedops.load: {argument} must {expected}; got {got}")


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"fusedops.load: name must be a str; got {type(name).__name__}")
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name) or keyword.iskeyword(name) or len(name) > _MAX_LETTERS:
        expected = f"be a name of letters, digits and underscores that begins with a letter, at most {_MAX_LETTERS}"
        raise _error("name", expected, ascii(name if len(name) <= _MAX_LETTERS else f"{name[:_MAX_LETTERS]}..."))


def _files(sources: Any) -> list[Path]:
    """The sources, each once."""
    given = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    try:
        paths = [Path(os.fspath(source)) for source in given]
    except TypeError:
        raise TypeError(
            f"fusedops.load: sources must be a path or a list of paths; got {type(sources).__name__}"
        ) from None
    for path in paths:
        if path.suffix not in _SUFFIXES:
            raise _error("sources", "be .cpp and .cu files", ascii(str(path)))
        if not re.fullmatch(r"[\w.+-]+", path.name, re.ASCII) or path.name.startswith("-"):
            raise _error("sources", "be files whose names have letters, digits and ._+- alone", ascii(path.name))
        if not path.is_file():
            raise FileNotFoundError(f"fusedops.load: sources must be files that exist; got {str(path)!a}")
    if not any(path.suffix == ".cpp" for path in paths):
        got = ", ".join(path.name for path in paths) or "none"
        raise _error("sources", "have a .cpp file, for declarations, rules and CPU kernels", got)
    return list(dict.fromkeys(path.absolute() for path in paths))


def _checked(operators: Sequence[Operator], gradients: Any) -> dict[str, Gradient]:
    """The user's formulas with the tensors that they read: all, unless the user names some."""
    by_name = {operator.name: operator for operator in operators}

    def error(name: str, expected: str, got: str) -> ValueError:
        return _error(f"the gradient of {name}", expected, got)

    if not isinstance(gradients, Mapping):
        raise TypeError(f"fusedops.load: gradients must be a dict; got {type(gradients).__name__}")
    checked = {}
    for name, value in gradients.items():
        if name not in by_name:
            raise _error("gradients", f"name operators of the library, {', '.join(by_name)}", repr(name))
        operator = by_name[name]
        if operator.derivative:
            raise _error("gradients", "be of operators that declare no derivative", name)
        if not operator.differentiable:
            raise _error("gradients", "be of operators without lists, mutated inputs and results in 8 bits", name)
        tensors = (*(x.name for x in operator.inputs), *(y.name for y in operator.outputs))
        formula, saves = value if isinstance(value, tuple) and len(value) == 2 else (value, tensors)
        if not callable(formula):
            raise TypeError(f"fusedops.load: the gradient of {name} must be a function; got {type(formula).__name__}")
        if not isinstance(saves, (list, tuple)) or not all(saved in tensors for saved in saves):
            raise error(name, f"read inputs and outputs, {', '.join(tensors)}", repr(saves))
        upstream = [f"d{y.name}" for y in operator.outputs]
        if not _takes(formula, 2 + len(upstream)):
            raise error(name, f"take the arguments f, c, {', '.join(upstream)}", str(inspect.signature(formula)))
        checked[name] = Gradient(_checking_names(operator, formula), tuple(saves))
    return checked


def _takes(function: Callable[..., Any], count: int) -> bool:
    """True if a function accepts this many positional arguments, or has no signature."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function in C may have no signature
        pass
    return True


def _checking_names(operator: Operator, formula: Formula) -> Formula:
    """The formula with a check that it returns gradients by the names of inputs. Other names would be ignored."""
    names = [x.name for x in operator.inputs]
    sentence = (
        f"fusedops.load: the gradient of {operator.name} must return a dict from names of inputs, {', '.join(names)}"
    )

    @functools.wraps(formula)
    def checked(f: Any, c: Any, *dy: Any) -> Mapping[str, Any]:
        gradients = formula(f, c, *dy)
        if not isinstance(gradients, Mapping):
            raise TypeError(f"{sentence}; got {type(gradients).__name__}")
        for name in gradients:
            if name not in names:
                raise ValueError(f"{sentence}; got {name!r}")
        return gradients

    return checked


def _check_same(before: Mapping[str, Gradient], given: Mapping[str, Gradient]) -> None:
    """Raises if a formula differs from the loaded one. Formulas that are not given again stay."""
    for name, gradient in given.items():
        if name not in before or _content(before[name]) != _content(gradient):
            expected = f"give {name} the formula with which this process has loaded it"
            raise _error("gradients", expected, "another one")


def _content(gradient: Gradient) -> tuple[Any, ...]:
    """The parts of a gradient that two definitions of one function share: a notebook cell may run twice."""
    formula = gradient.formula.__wrapped__  # type: ignore[attr-defined]
    return gradient.saves, getattr(formula, "__code__", formula)
