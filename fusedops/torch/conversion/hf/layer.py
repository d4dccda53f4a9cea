"""The base of the counterparts of transformers' modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fusedops.conversion import UnknownClass
from fusedops.torch.nn.layer import FusedLayer, is_mixed


class HFLayer(FusedLayer, torch.nn.Module if TYPE_CHECKING else object):  # type: ignore[misc]
    """Comes before a class of transformers' among the bases of its counterpart, and has the faster methods."""

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
        """Another reason why the methods do not support the module as it is configured, if there is one."""
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As an instance of the original class, to be converted again: pickle cannot find a class made at run time."""
        _, (kind, *_), *state = super().__reduce_ex__(max(protocol, 2))
        return (_blank, (kind.original,), *state)


def _blank(kind: type) -> Any:
    """A module without state of the class's counterpart; of the class where transformers is another than it was."""
    from fusedops.torch.conversion import hf

    try:
        return object.__new__(hf.counterpart(kind) if hf.is_known(kind) else kind)
    except (ImportError, AttributeError, UnknownClass):
        return object.__new__(kind)


def stays_half(x: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether they are mixed, and autocast would round their product to 16 bits again.

    Elsewhere torch's product of both is float32, and so must ours be.
    """
    return is_mixed(x, parameter) and torch.is_autocast_enabled(x.device.type)
