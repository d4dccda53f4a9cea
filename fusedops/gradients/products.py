"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.activations import ACTIVATIONS
from fusedops.gradients.composite import second_derivative
from fusedops.gradients.registry import Tensor, gradient


@gradient("matmul_backward", saves=("dc", "a", "b"))
def _matmul_backward(f: Any, c: Any, gda: Tensor | None, gdb: Tensor | None) -> Mapping[str, Any]:
    """The gradients of da, which is linear in dc and b, and of db, which is linear in dc and a."""
    transposes = {"transpose_a": c.transpose_a, "transpose_b": c.transpose_b}
    of_dc: list[tuple[Tensor, Tensor]] = []
    gradients: dict[str, Any] = {}
    if gda is not None:
        of_dc.append((gda, c.b))
        gradients["b"] = lambda: f.matmul_backward(c.dc, gda, c.b, need_da=False, **transposes)[1]
    if gdb is not None:
        of_dc.append((c.a, gdb))
        gradients["a"] = lambda: f.matmul_backward(c.dc, None, gdb, need_db=False, **transposes)[0]

    def both() -> Tensor:
        terms = [f.matmul(f.compute(left), f.compute(right), **transposes) for left, right in of_dc]
        return f.cast(f.add(*terms), c.dc)

    if of_dc:
        gradients["dc"] = both if len(of_dc) == 2 else lambda: f.matmul(*of_dc[0], **transposes)
    return gradients


@gradient("linear_backward", saves=("dy", "x", "weight", "bias"))
def _linear_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    def plain(f: Any, c: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return ACTIVATIONS[c.activation](f, affine(f, c, x, weight, bias))

    return second_derivative(f, c, plain, x=gdx, weight=gdweight, bias=gdbias)


@gradient("gated_linear_backward", saves=("dy", "x", "gate_weight", "up_weight", "gate_bias", "up_bias"))
def _gated_linear_backward(f: Any, c: Any, *upstream: Any) -> Mapping[str, Any]:
    names = ("x", "gate_weight", "up_weight", "gate_bias", "up_bias")

    def plain(f: Any, c: Any, x: Tensor, **of: Tensor | None) -> Tensor:
        gate = affine(f, c, x, of["gate_weight"], of["gate_bias"])
        return ACTIVATIONS[c.activation](f, gate) * affine(f, c, x, of["up_weight"], of["up_bias"])

    return second_derivative(f, c, plain, **dict(zip(names, upstream, strict=True)))


def affine(f: Any, c: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    z = f.product(x, f.transpose_last(weight) if c.transpose_weight else weight)
    return z if bias is None else z + bias
