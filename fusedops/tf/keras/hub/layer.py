"""The base of the counterparts of KerasHub's layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from fusedops.keras_layers.layer import FusedLayer
from fusedops.keras_layers.visibility import unsupported_heads


class HubLayer(FusedLayer):
    """A layer of KerasHub with faster methods.

    A class may have a `fused_call`, which takes the arguments of KerasHub's `call` as attributes of one object. The
    counterpart then has a `call` with the original's signature, by which Keras binds and casts the arguments.
    """

    arguments: ClassVar[int]  # the number of arguments that `fused_call` handles
    signature: ClassVar[inspect.Signature]  # of KerasHub's `call`

    needs: ClassVar[tuple[str, ...]] = ()  # attributes that the methods read, beside those of every layer
    head_attribute: ClassVar[str | None] = None  # with the number of features of a head, for attention

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        owner = next((kind for kind in cls.__mro__ if "call" in vars(kind)), HubLayer)
        if hasattr(cls, "fused_call") and not issubclass(owner, HubLayer):
            cls.signature = inspect.signature(vars(owner)["call"])
            cls.call = _call(cls.signature)

    def why_not(self, inputs: Any = None) -> str | None:
        if not self.built:  # its own layers are made when it is built, and could not be converted yet
            return "not built yet: call the model once, then convert it"
        return self._lacks() or self._unsupported_heads()

    def _lacks(self) -> str | None:
        missing = [name for name in self.needs if not hasattr(self, name)]
        if missing:
            return f"this version of KerasHub's has no attribute {missing[0]}"
        if hasattr(self, "fused_call") and len(self.signature.parameters) != 1 + self.arguments:
            return "this version of KerasHub's takes other arguments"
        return None

    def _unsupported_heads(self) -> str | None:
        name = self.head_attribute
        return unsupported_heads(**{name: getattr(self, name)}) if name else None


def _call(signature: inspect.Signature) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        _, *arguments = given.arguments.items()
        return self.fused_call(SimpleNamespace(**dict(arguments)))

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
