"""Inputs of layers that take two tensors of one shape, x and a residual, as two arguments or as one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusedops.keras_layers.backend import PACKAGE, own


def one_shape(input_shape: Any) -> Any:
    """The shape of x, from its own or from those of x and the residual."""
    if isinstance(input_shape, (list, tuple)) and not isinstance(input_shape[0], (list, tuple)):
        return input_shape
    shapes = _two(input_shape)
    _check_shapes(*shapes)
    return shapes[0]


def pair(inputs: Any, residual: Any) -> Sequence[Any]:
    found = _two(inputs if residual is None else (inputs, residual))
    _check_shapes(*(x.shape for x in found))
    return found


def _two(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, (list, tuple)) and len(inputs) == 2:
        return inputs
    raise ValueError(
        f"{PACKAGE}.keras: a layer over a sum takes two tensors, layer(x, residual) or layer([x, residual]); got "
        f"{inputs!r}"
    )


def _check_shapes(x: Any, residual: Any) -> None:
    """The kernel's check, for shapes that are known before it runs."""
    if None in (getattr(x, "rank", 0), getattr(residual, "rank", 0)):  # of TensorFlow's shapes
        return
    same = len(x) == len(residual) and all(a == b or None in (a, b) for a, b in zip(x, residual, strict=True))
    if not same:
        raise ValueError(f"{PACKAGE}.keras: residual must have x's shape, {list(x)}; got {list(residual)}")


def sum_of(x: Any, residual: Any) -> Any:
    """The sum. Dense tensors are not broadcast, even if their shapes are unknown."""
    return own.summed(x, residual)
