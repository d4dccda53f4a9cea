"""The catalogue of code that `convert` recognizes.

Each class here is a *form*: the code of a method that modules of many families share, mostly `forward`. It is compared
and never run. A model's class with the same code, except for names (`fusedops.torch.conversion.source`), gets the
form's mixin. The attributes in a form have the mixin's names; their names in a model's class follow from their places
in the code. A form has the name of the class that it was written for, which the report mentions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any, ClassVar

_FILES = ("activations", "norms", "mlps", "experts", "dense", "residual")


class Form:
    """The base of all forms.

    Class arguments:
        mixin: the class that computes it, as file.class of `hf`.
        first, then: attributes that the mixin calls before and after its own computation, in this order.
        options: further attributes of the counterpart.
    """

    mixin: ClassVar[str]
    method: ClassVar[str]  # the compared method
    options: ClassVar[dict[str, Any]]
    is_named_if_near: ClassVar[bool]  # True if the report names it for similar code

    def __init_subclass__(cls, mixin: str, method: str = "forward", **options: Any) -> None:
        cls.mixin, cls.method, cls.options = mixin, method, options
        cls.is_named_if_near = not mixin.startswith("dense.")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@functools.cache
def all_forms(with_transformers: bool) -> tuple[type[Form], ...]:
    """All forms; those that need transformers only `with_transformers`."""
    modules = [importlib.import_module(f"{__name__}.{file}") for file in _FILES]
    if with_transformers:
        with contextlib.suppress(ImportError):  # another package of this name, or an unknown version
            modules.append(importlib.import_module(f"{__name__}.of_transformers"))
    return tuple(value for module in modules for value in vars(module).values() if _is_form(value))


def _is_form(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Form) and value is not Form
