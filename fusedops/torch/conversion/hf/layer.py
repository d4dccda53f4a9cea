"""What the counterparts of transformers' modules have in common."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.modules.module import _has_any_global_hook

from fusedops.torch.nn.layer import FusedLayer, is_mixed


class UnknownClass(Exception):
    """Says why no counterpart of a class of transformers' can be made: another version may have another class."""


class HFLayer(FusedLayer, torch.nn.Module if TYPE_CHECKING else object):  # type: ignore[misc]
    """Stands before a class of transformers' among the bases of its counterpart, and has the faster methods."""

    original: ClassVar[type]
    mixin: ClassVar[type]
    needs: ClassVar[tuple[str, ...]] = ()  # attributes of the module that the methods read
    computes: ClassVar[tuple[str, ...]] = ()  # those among them that are modules whose work the kernel does

    @classmethod
    def over(cls, kind: type) -> type:
        """The counterpart of a class.

        It has the name and the module of the class: transformers asks a model for both, for instance to read from the
        source of its module which kinds of attention it can have.
        """
        names: dict[str, Any] = {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "original": kind,
            "mixin": cls,
        }
        return type(kind)(kind.__name__, (cls, kind), names | cls.members(kind))

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        """What the counterpart has that depends on the class.

        Raises:
            UnknownClass: it is not what the mixin expects.
        """
        return {}

    def why_not(self, *inputs: Any) -> str | None:
        """As of every layer; of the module where no inputs are given, and of the inputs alone in every call."""
        if inputs:
            return None
        missing = [name for name in self.needs if not hasattr(self, name)]
        if missing:
            return f"this version of transformers' {type(self).__name__} has no attribute {missing[0]}"
        return self.unfused()

    def unfused(self) -> str | None:
        """What else of the module, as it is configured, the methods do not know."""
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As an instance of the original class that is to be converted: pickle finds no class that was made."""
        _, (kind, *_), *state = super().__reduce_ex__(max(protocol, 2))
        return (_blank, (kind.original,), *state)


def _blank(kind: type) -> Any:
    """A module without state of the class's counterpart; of the class where transformers is another than it was."""
    from fusedops.torch.conversion.hf import counterpart

    try:
        return object.__new__(counterpart(kind) or kind)
    except (ImportError, AttributeError, UnknownClass):
        return object.__new__(kind)


def unknown_forward(kind: type, names: Collection[str], variables: Collection[str] = ()) -> str | None:
    """The reason not to stand in for a class's forward, unless it reads these names and has these variables of its own.

    Another version of transformers may do more there, or return more.
    """
    forward = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    if isinstance(forward, FunctionType) and set(forward.__code__.co_names) == set(names):
        own = set(forward.__code__.co_varnames) - set(inspect.signature(forward).parameters)
        if own <= set(variables):
            return None
    return f"this version of transformers' {kind.__name__} computes in another way"


def with_global(function: FunctionType, name: str, value: Any) -> FunctionType:
    """The same function with another value under one of its global names.

    The others are those of this moment: what somebody exchanges in the function's module later on, it does not see.
    Without a `__name__` among its globals: torch.compile would take those of the module that has that name.
    """
    names = {**function.__globals__, name: value}
    del names["__name__"]
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return copy


def is_watched(module: torch.nn.Module) -> bool:
    """Whether somebody would notice that the module is not called: by hooks, or by a forward that they set.

    Hooks may be the module's or those of all modules.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in module.__dict__ or _has_any_global_hook()  # type: ignore[no-untyped-call]


def stays_half(x: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether they are mixed, and autocast would round their product to 16 bits again.

    Elsewhere torch's product of both is float32, and so must ours be.
    """
    return is_mixed(x, parameter) and torch.is_autocast_enabled(x.device.type)
