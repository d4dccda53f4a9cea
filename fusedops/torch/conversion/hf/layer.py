"""The base of the counterparts of transformers' modules, and of others with the same code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fusedops.conversion import UnknownClass, subclass
from fusedops.torch.conversion.hf.code import with_parameters
from fusedops.torch.nn.layer import FusedLayer, is_mixed

_is_compiling = torch.compiler.is_dynamo_compiling

ONLY_ALIKE = ""  # the reason to skip a module whose code equals a form by chance, not mentioned in the report


class HFLayer(FusedLayer, torch.nn.Module if TYPE_CHECKING else object):  # type: ignore[misc]
    """The first base of a counterpart, with the faster methods; the original class is the second."""

    original: ClassVar[type]
    mixin: ClassVar[type]
    like: ClassVar[str]  # the name of the form
    methods: ClassVar[tuple[str, ...]] = ()  # methods of the class that its forward calls
    names: ClassVar[Mapping[str, str]] = {}  # attributes, by their names in the form
    then: ClassVar[tuple[str, ...]] = ()  # modules that are called last
    computes: ClassVar[tuple[str, ...]] = ()  # modules that the kernel replaces
    optional: ClassVar[tuple[str, ...]] = ()  # attributes that a module may lack

    @classmethod
    def over(cls, kind: type, like: str, names: Mapping[str, str], options: Mapping[str, Any]) -> type:
        """The counterpart of a class.

        It has the name and `__module__` of the class. transformers reads both, for instance to search the source of the
        module for the supported kinds of attention.

        Args:
            kind: the class.
            like: the name of the form.
            names: the class's names of attributes, by their names in the form.
            options: further attributes of the counterpart, from the form.

        Raises:
            UnknownClass: the class does not fit the mixin, cannot be subclassed, or has its own __reduce__.
        """
        if any(getattr(kind, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
            raise UnknownClass("its class has a __reduce__ of its own")
        members: dict[str, Any] = {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "original": kind,
            "mixin": cls,
            "like": like,
            "names": names,
            **options,
        }
        if hasattr(cls, "forward"):  # callers may use the original names of parameters
            members["forward"] = with_parameters(cls.forward, inspect.unwrap(kind.forward))  # type: ignore[attr-defined]
        members |= cls.members(kind)
        return subclass(cls, kind, members)

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        """Further members of the counterpart, derived from the class.

        Raises:
            UnknownClass: the class does not fit the mixin.
        """
        return {}

    def part(self, role: str) -> Any:
        """The attribute with this name in the form."""
        name = self.names[role]
        if _is_compiling():
            return getattr(self, name)
        modules = self._modules  # torch itself looks here last
        return modules[name] if name in modules else getattr(self, name)

    def parts(self, roles: Sequence[str], x: torch.Tensor) -> torch.Tensor:
        """Applies these modules to x, one after the other."""
        for role in roles:
            x = self.part(role)(x)
        return x

    def undropped(self, roles: Sequence[str], x: torch.Tensor) -> tuple[torch.Tensor, torch.nn.Dropout | None]:
        """As `parts`, but returns a final dropout instead of calling it, so that the next pass can fuse it."""
        dropout = self.part(roles[-1]) if roles else None
        if not isinstance(dropout, torch.nn.Dropout):
            return self.parts(roles, x), None
        return self.parts(roles[:-1], x), dropout

    def computed(self) -> list[Any]:
        """The modules that the kernel replaces."""
        return [self.part(role) for role in self.computes if role in self.names]

    def why_not(self, *inputs: Any) -> str | None:
        """As in `FusedLayer`. Without inputs it checks the module, with inputs only the inputs."""
        if inputs:
            return None
        for name in self.methods:
            if name in vars(self):
                return f"its {name} is an attribute of its own, set by user code"
        for role, name in self.names.items():
            if role not in self.optional and not hasattr(self, name):
                return f"it has no attribute {name}"
        return self.unfused()

    def unfused(self) -> str | None:
        """A further reason why the mixin does not support the module's configuration, or None."""
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as an instance of the original class, since pickle cannot find a class made at run time."""
        _, (kind, *_), *state = super().__reduce_ex__(max(protocol, 2))
        return (_blank, (kind.original,), *state)


def _blank(kind: type) -> Any:
    """An instance of the class's counterpart, or of the class if this version of transformers has none, for pickle."""
    from fusedops.torch.conversion import hf
    from fusedops.torch.conversion.hf import implementation

    implementation.names()  # its config may have one of these, which registers them
    try:
        return object.__new__(hf.counterpart(kind) if hf.is_known(kind) else kind)
    except (ImportError, AttributeError, UnknownClass):
        return object.__new__(kind)


class ClassSpecificLayer(HFLayer):
    """The base of counterparts that are derived from one class, without a form."""

    @classmethod
    @functools.cache
    def of(cls, kind: type) -> type:
        """The counterpart of a class.

        Raises:
            UnknownClass: as `over`.
        """
        return cls.over(kind, like="", names={}, options={})

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, (kind,), *state = super().__reduce_ex__(protocol)
        return (_without_state, (kind, self.mixin), *state)


def _without_state(kind: type, mixin: type[ClassSpecificLayer]) -> Any:
    """An instance of the class's counterpart, or of the class if it has none now, for pickle."""
    try:
        return object.__new__(mixin.of(kind))
    except UnknownClass:
        return object.__new__(kind)


def stays_half(x: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if x is 16-bit, the parameter float32, and autocast rounds their product to 16 bits.

    Without autocast torch's product of both is float32, and so must ours be.
    """
    return is_mixed(x, parameter) and torch.is_autocast_enabled(x.device.type)
