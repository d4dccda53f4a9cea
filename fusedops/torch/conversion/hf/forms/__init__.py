"""What `convert` knows of other people's modules: their code, which is compared with that of a model's classes.

Each class here is a *form*: the code of a method that modules of many families share, most often `forward`, and of what
it calls. Nothing of it is ever run. A class of a model whose code is the same, but for the names that somebody chose
(`fusedops.torch.conversion.source`), gets the form's mixin. The attributes in a form have the names by which the mixin
asks for them; what they are called in a model's class follows from where they stand in the code. A form has the name of
the class that it was written for, which the report mentions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any, ClassVar

_FILES = ("norms", "mlps", "dense", "residual")


class Form:
    """The base of all forms.

    Class arguments:
        mixin: what computes it, as file.class of `hf`.
        first, then: names of attributes that the mixin calls in this order, for those that call what comes before or
            after.
        options: further attributes of the counterpart.
    """

    mixin: ClassVar[str]
    method: ClassVar[str]  # the one that is compared
    options: ClassVar[dict[str, Any]]
    is_named_if_near: ClassVar[bool]  # whether code that differs a little is worth a word

    def __init_subclass__(cls, mixin: str, method: str = "forward", **options: Any) -> None:
        cls.mixin, cls.method, cls.options = mixin, method, options
        cls.is_named_if_near = not mixin.startswith("dense.")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@functools.cache
def all_forms(with_transformers: bool) -> tuple[type[Form], ...]:
    """Those that transformers must be there for are left out if it is not."""
    modules = [importlib.import_module(f"{__name__}.{file}") for file in _FILES]
    if with_transformers:
        with contextlib.suppress(ImportError):  # of another package of this name, or of a version that is not known
            modules.append(importlib.import_module(f"{__name__}.of_transformers"))
    return tuple(value for module in modules for value in vars(module).values() if _is_form(value))


def _is_form(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Form) and value is not Form
