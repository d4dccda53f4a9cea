"""Names that the public functions use. Each package replaces some by its own; the others are types of options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

from fusedops.checks import renamed as renamed

if TYPE_CHECKING:
    from fusedops.functions.operators import Operators

MAX_FEATURES = 576  # of a head of attention: kMaxFeatures of the core

Tensor = Any
TensorLike = Any  # convertible to a tensor; in PyTorch a tensor
Variable = Any  # mutated by a function; in PyTorch a tensor
Refused: TypeAlias = NoReturn  # the type of arguments that a function refuses: see refusal.py
ops: Operators = cast("Operators", None)  # set per framework by `define`


def may_need_gradient(*tensors: Tensor | None) -> bool:
    """True if a backward may read tensors saved now. If that is unknown, False: the backward recomputes them."""
    raise NotImplementedError  # set per framework by `define`


def may_keep_gradient(x: Tensor | None) -> bool:
    """True if a forward may compute the gradient of x for its backward. If that is unknown, False."""
    raise NotImplementedError  # a framework's


def seed_of(function: str, seed: Tensor | Sequence[int] | None, x: Tensor) -> Tensor:
    """The seed of a public function's call as an operator takes it."""
    raise NotImplementedError  # set per framework by `define`


def integers_of(function: str, name: str, value: Tensor | int | None, q: Tensor) -> Tensor | None:
    """An option with one integer for each sequence, such as attention's query offset, as an operator takes it."""
    raise NotImplementedError  # a framework's


def ring_of_context(function: str, **not_sharded: Any) -> Callable[..., Tensor] | None:
    """Attention over the shards of all processes, inside a context of the framework that shards positions; else None.

    `not_sharded`: arguments that a call inside the context must not have.
    """
    raise NotImplementedError  # set per framework by `define`


def dtype_name(dtype: Any) -> str:
    """The name of a framework's dtype, or of a dtype given by name."""
    if isinstance(dtype, str):
        return dtype
    return getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")


Activation: TypeAlias = Literal["identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]
Approximation: TypeAlias = Literal["none", "tanh"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
Scaling: TypeAlias = Literal["tensor", "row", "block"]
