"""The number of floating-point operations of a call, for operators whose work is matrix products.

As in the frameworks' own counters, only products count, each multiplication and each addition as one operation. A
formula takes the shapes of the inputs, None for an absent one, and the attributes, by their declared names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Shape = Sequence[int]
Formula = Callable[..., int]

FLOPS: dict[str, Formula] = {}
_GRADIENTS = ("dx", "dweight", "dbias")  # of linear_cross_entropy


def flops(operator: str) -> Callable[[Formula], Formula]:
    """Declares the formula of `operator`."""

    def declare(formula: Formula) -> Formula:
        FLOPS[operator] = formula
        return formula

    return declare


def _is_given(saved: Shape | None) -> bool:
    return saved is not None and prod(saved) > 0


@flops("matmul")
@flops("accumulate_matmul")
def _matmul(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool, **_: Any) -> int:
    columns = b[-2] if transpose_b else b[-1]
    return 2 * prod(a) * columns


@flops("matmul_backward")
def _matmul_backward(
    dc: Shape, a: Shape | None, b: Shape, transpose_a: bool, transpose_b: bool, need_da: bool, need_db: bool
) -> int:
    depth = b[-1] if transpose_b else b[-2]  # K of the forward
    return (need_da + need_db) * 2 * prod(dc) * depth


@flops("linear")
@flops("linear_log_prob")
def _linear(x: Shape, weight: Shape, transpose_weight: bool, **_: Any) -> int:
    return 2 * prod(x) * (weight[0] if transpose_weight else weight[1])


@flops("linear_backward")
def _linear_backward(x: Shape, weight: Shape, z: Shape | None, activation: str, **options: Any) -> int:
    recomputes = activation != "identity" and not _is_given(z)
    return int(recomputes + options["need_dx"] + options["need_dweight"]) * _linear(x, weight, **options)


@flops("linear_cross_entropy")
def _linear_cross_entropy(
    x: Shape, weight: Shape, transpose_weight: bool, keep_dx: bool, keep_dweight: bool, **_: Any
) -> int:
    return (1 + keep_dx + keep_dweight) * _linear(x, weight, transpose_weight)


@flops("linear_cross_entropy_backward")
@flops("linear_log_prob_backward")
def _linear_cross_entropy_backward(
    x: Shape, weight: Shape, bias: Shape | None, transpose_weight: bool, **rest: Any
) -> int:
    dx, dweight, dbias = (rest[f"need_{name}"] and not _is_given(rest.get(f"unit_{name}")) for name in _GRADIENTS)
    recomputes = dx or dweight or (dbias and bias is not None)
    return (recomputes + dx + dweight) * _linear(x, weight, transpose_weight)


@flops("gated_linear")
def _gated_linear(x: Shape, gate_weight: Shape, transpose_weight: bool, **_: Any) -> int:
    return 2 * _linear(x, gate_weight, transpose_weight)


@flops("gated_linear_backward")
def _gated_linear_backward(x: Shape, gate_weight: Shape, gate: Shape | None, **options: Any) -> int:
    recomputes = not _is_given(gate)
    products = 2 * recomputes + 2 * options["need_dx"] + options["need_dgate_weight"] + options["need_dup_weight"]
    return int(products) * _linear(x, gate_weight, **options)


@flops("grouped_matmul")
def _grouped_matmul(x: Shape, weights: Shape, transpose_weights: bool, **_: Any) -> int:
    """As if all rows belonged to groups: shapes do not tell."""
    return 2 * prod(x) * weights[1 if transpose_weights else 2]


@flops("grouped_matmul_backward")
def _grouped_matmul_backward(dy: Shape, x: Shape, **_: Any) -> int:
    return 2 * prod(x) * dy[-1]


def _experts_products(index: Shape, gate_up: Shape, down: Shape, of_gate_up: int, of_down: int) -> int:
    """So many products with each of the two matrices of an expert, for each pair of a token and its expert."""
    return 2 * prod(index) * (of_gate_up * prod(gate_up[1:]) + of_down * prod(down[1:]))


@flops("experts")
def _experts(index: Shape, gate_up: Shape, down: Shape, **_: Any) -> int:
    return _experts_products(index, gate_up, down, 1, 1)


@flops("experts_backward")
def _experts_backward(index: Shape, gate_up: Shape, down: Shape, z: Shape | None, **options: Any) -> int:
    of_gate_up = (not _is_given(z)) + options["need_dx"] + options["need_dgate_up"]
    return _experts_products(index, gate_up, down, of_gate_up, 1 + options["need_ddown"])


def _attention_products(q: Shape, v: Shape, keys: int, of_q: int, of_v: int) -> int:
    """`of_q` products over q's features and `of_v` over v's, for each pair of a query and a key.

    Masked pairs count too, as in torch's own counter.
    """
    rows = prod(q) // max(q[-1], 1)
    return 2 * rows * keys * (of_q * q[-1] + of_v * v[-1])


@flops("attention")
@flops("attention_lse")
def _attention(q: Shape, k: Shape, v: Shape, seq_dim: int, **_: Any) -> int:
    return _attention_products(q, v, k[seq_dim], 1, 1)


@flops("attention_backward")
def _attention_backward(q: Shape, k: Shape, v: Shape, seq_dim: int, **_: Any) -> int:
    """Recomputes the scores. The gradients of p and v are products over v's features, those of q and k over q's."""
    return _attention_products(q, v, k[seq_dim], 3, 2)


def _keys_of_packed(k: Shape, offsets_k: Shape) -> int:
    """The mean length of the sequences: shapes do not tell more."""
    return k[0] // max(offsets_k[0] - 1, 1)


@flops("attention_varlen")
@flops("attention_varlen_lse")
def _attention_varlen(q: Shape, k: Shape, v: Shape, offsets_k: Shape, **_: Any) -> int:
    return _attention_products(q, v, _keys_of_packed(k, offsets_k), 1, 1)


@flops("attention_varlen_backward")
def _attention_varlen_backward(q: Shape, k: Shape, v: Shape, offsets_k: Shape, **_: Any) -> int:
    return _attention_products(q, v, _keys_of_packed(k, offsets_k), 3, 2)
