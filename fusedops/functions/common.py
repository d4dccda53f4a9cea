"""What the public functions refer to: names that each package replaces by its own, and types of their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

from fusedops.checks import renamed as renamed

if TYPE_CHECKING:
    from fusedops.functions.operators import Operators

Tensor = Any
TensorLike = Any  # what a function makes a tensor of: in PyTorch a tensor
Variable = Any  # what a function updates: in PyTorch a tensor
Refused: TypeAlias = NoReturn  # the type of arguments that a function does not have: see refusal.py
ops: Operators = cast("Operators", None)  # a framework's


def may_need_gradient(*tensors: Tensor | None) -> bool:
    """Whether what a backward would read is worth keeping. Where nothing can tell, False: it is computed again then."""
    raise NotImplementedError  # a framework's


def seed_of(function: str, seed: Tensor | Sequence[int] | None, x: Tensor) -> Tensor:
    """The seed of a public function's call as an operator takes it."""
    raise NotImplementedError  # a framework's


def ring_of_context(function: str, **not_sharded: Any) -> Callable[..., Tensor] | None:
    """Attention over the shards of all processes, inside a context of the framework that shards positions; else None.

    `not_sharded`: arguments that a call inside the context must not have.
    """
    raise NotImplementedError  # a framework's


def dtype_name(dtype: Any) -> str:
    """Of a framework's dtype, or of one that is a name already."""
    if isinstance(dtype, str):
        return dtype
    return getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")


Activation: TypeAlias = Literal["identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]
Approximation: TypeAlias = Literal["none", "tanh"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
Scaling: TypeAlias = Literal["tensor", "row", "block"]
