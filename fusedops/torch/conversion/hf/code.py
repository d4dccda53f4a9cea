"""Where the code of transformers' functions is looked into, or run with something else in it.

A counterpart that computes a whole `forward` must know all that the original does; one that changes a single step of a
long `forward` runs the original's code. Neither has an ordinary way: the steps are functions that `forward` calls by
global names, and transformers' own modules are not to be changed, since models that nobody converted share them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from types import FunctionType
from typing import Any


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
    names.pop("__name__", None)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return copy
