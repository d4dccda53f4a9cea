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

_is_compiling = torch.compiler.is_compiling

ONLY_ALIKE = ""  # the reason not to convert a module that has a form's code by chance; it is not worth a word


class HFLayer(FusedLayer, torch.nn.Module if TYPE_CHECKING else object):  # type: ignore[misc]
    """Comes before a class of transformers' among the bases of its counterpart, and has the faster methods."""

    original: ClassVar[type]
    mixin: ClassVar[type]
    like: ClassVar[str]  # what the code is known from
    methods: ClassVar[tuple[str, ...]] = ()  # of the class, whose code is known with that of its forward
    names: ClassVar[Mapping[str, str]] = {}  # of the attributes, by the names that they have in the form
    then: ClassVar[tuple[str, ...]] = ()  # modules that are called last
    computes: ClassVar[tuple[str, ...]] = ()  # those whose work the kernel does
    optional: ClassVar[tuple[str, ...]] = ()  # those that a module may lack

    @classmethod
    def over(cls, kind: type, like: str, names: Mapping[str, str], options: Mapping[str, Any]) -> type:
        """The counterpart of a class.

        It has the name and the module of the class: transformers asks a model for both, for instance to read from the
        source of its module which kinds of attention it can have.

        Args:
            kind: the class.
            like: what its code is known from.
            names: of its attributes, by the names that they have in the form.
            options: attributes of the counterpart, of the form's.

        Raises:
            UnknownClass: the class is not what the mixin expects, takes no subclass, or says itself how to make another
                of its instances, which would not be one of ours.
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
        if hasattr(cls, "forward"):  # by whose names of its parameters it may be called
            members["forward"] = with_parameters(cls.forward, inspect.unwrap(kind.forward))  # type: ignore[attr-defined]
        members |= cls.members(kind)
        return subclass(cls, kind, members)

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        """What the counterpart has that depends on the class.

        Raises:
            UnknownClass: it is not what the mixin expects.
        """
        return {}

    def part(self, role: str) -> Any:
        """The attribute that the form has under this name."""
        name = self.names[role]
        if _is_compiling():  # which has its own ways to find it
            return getattr(self, name)
        modules = self._modules  # where torch itself looks last
        return modules[name] if name in modules else getattr(self, name)

    def parts(self, roles: Sequence[str], x: torch.Tensor) -> torch.Tensor:
        """What these modules make of x, one after the other."""
        for role in roles:
            x = self.part(role)(x)
        return x

    def undropped(self, roles: Sequence[str], x: torch.Tensor) -> tuple[torch.Tensor, torch.nn.Dropout | None]:
        """The same, but for a dropout at the end, which is handed out: what follows may have it in its pass."""
        dropout = self.part(roles[-1]) if roles else None
        if not isinstance(dropout, torch.nn.Dropout):
            return self.parts(roles, x), None
        return self.parts(roles[:-1], x), dropout

    def computed(self) -> list[Any]:
        """The modules whose work the kernel does."""
        return [self.part(role) for role in self.computes if role in self.names]

    def why_not(self, *inputs: Any) -> str | None:
        """As of every layer; of the module where no inputs are given, and of the inputs alone in every call."""
        if inputs:
            return None
        for name in self.methods:
            if name in vars(self):
                return f"its {name} is an attribute of its own, which somebody has set"
        for role, name in self.names.items():
            if role not in self.optional and not hasattr(self, name):
                return f"it has no attribute {name}"
        return self.unfused()

    def unfused(self) -> str | None:
        """Another reason why the methods do not support the module as it is configured, if there is one."""
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As an instance of the original class, to be converted again: pickle cannot find a class made at run time."""
        _, (kind, *_), *state = super().__reduce_ex__(max(protocol, 2))
        return (_blank, (kind.original,), *state)


def _blank(kind: type) -> Any:
    """A module without state of the class's counterpart; of the class where transformers is another than it was."""
    from fusedops.torch.conversion import hf
    from fusedops.torch.conversion.hf import implementation

    implementation.names()  # which its config may have
    try:
        return object.__new__(hf.counterpart(kind) if hf.is_known(kind) else kind)
    except (ImportError, AttributeError, UnknownClass):
        return object.__new__(kind)


class ClassSpecificLayer(HFLayer):
    """The base of those whose class is not known from a form: a counterpart is that of one class alone."""

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
    """A module to be unpickled, of a class's counterpart; of the class itself where it is another than it was."""
    try:
        return object.__new__(mixin.of(kind))
    except UnknownClass:
        return object.__new__(kind)


def stays_half(x: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether they are mixed, and autocast would round their product to 16 bits again.

    Elsewhere torch's product of both is float32, and so must ours be.
    """
    return is_mixed(x, parameter) and torch.is_autocast_enabled(x.device.type)
