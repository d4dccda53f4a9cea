"""rope and rms_norm_rope, on (batch, sequence, heads, features)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.operators.normalization import plain_rms_norm, torch_rms_norm
from benchmarks.operators.record import Function, Input, Layout, Operator, Shape, of_a_row

HEAD = 128  # features


def _of_positions(case: Any) -> Layout:
    return Layout((case.shape[1], case.shape[3] // 2), 0)


def _positions_as_rows(case: Any) -> Layout:
    return Layout(case.shape, 1)


def _turned(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Shape], np.ndarray]:
    """The cosines or sines of the angles of `_of_positions`."""

    def values(shape: Shape) -> np.ndarray:
        positions, pairs = shape
        return function(np.outer(np.arange(positions), 10000.0 ** (-np.arange(pairs) / pairs)))

    return values


def _rope(n: Any) -> Function:
    def rope(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        a, b = n.upcast(x[..., :half]), n.upcast(x[..., half:])
        c, s = n.upcast(cos)[:, None, :], n.upcast(sin)[:, None, :]
        return n.like(n.join(a * c - b * s, b * c + a * s), x)

    return rope


def _torch_rope(torch: Any) -> Function:
    def rope(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return rope


def _liger_rope(ops: Any) -> Function:
    def rope(x: Any, cos: Any, sin: Any) -> Any:
        # It rotates queries and keys in place: here one half of the batch each, so that both are contiguous.
        if x.requires_grad:
            raise NotImplementedError("rotates in place")
        half = x.shape[0] // 2
        queries, keys = x[:half].transpose(1, 2), x[half:].transpose(1, 2)
        ops.LigerRopeFunction.apply(queries, keys, cos, sin, None, 1, x.shape[-1])
        return x

    return rope


def _normed(norm: Callable[[Any], Function], rope: Callable[[Any], Function]) -> Callable[[Any], Function]:
    def made(library: Any) -> Function:
        norm_of, rope_of = norm(library), rope(library)
        return lambda x, weight, cos, sin: rope_of(norm_of(x, weight), cos, sin)

    return made


ANGLES = (
    Input("cos", _of_positions, gradient=False, values=_turned(np.cos)),
    Input("sin", _of_positions, gradient=False, values=_turned(np.sin)),
)
SHAPES: dict[str, Any] = {
    "outputs": {"out": _positions_as_rows},
    "shape": lambda rows, columns: (4, rows // 4, columns // HEAD, HEAD),
    "smallest": (1, 4, 1, 16),
}

OPERATORS = (
    Operator(
        "rope",
        inputs=(Input("x", _positions_as_rows), *ANGLES),
        moves=(2, 2),
        operations=(3, 3),
        formula=_rope,
        torch=_torch_rope,
        liger=_liger_rope,
        quack=lambda quack: import_module("quack.rotary").apply_rotary_emb,
        floors=(1.06, 0.0),
        **SHAPES,
    ),
    Operator(
        "rms_norm_rope",
        inputs=(Input("x", _positions_as_rows), Input("weight", of_a_row, parameter=True), *ANGLES),
        moves=(2, 3),
        operations=(7, 12),
        formula=_normed(plain_rms_norm, _rope),
        torch=_normed(torch_rms_norm, _torch_rope),
        **SHAPES,
    ),
)
