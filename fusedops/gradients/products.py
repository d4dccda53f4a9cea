"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.registry import Tensor, gradient


@gradient("matmul", saves=("a", "b"))
def _matmul(f: Any, c: Any, dc: Tensor) -> Mapping[str, Any]:
    need_da, need_db = c.wanted("a"), c.wanted("b")
    a = c.a if need_db else None
    da, db = f.matmul_backward(dc, a, c.b, need_da=need_da, need_db=need_db, **_transposes(c))
    return {"a": da, "b": db}


@gradient("matmul_backward", saves=("dc", "a", "b"))
def _matmul_backward(f: Any, c: Any, gda: Tensor | None, gdb: Tensor | None) -> Mapping[str, Any]:
    """Of da, which is linear in dc and b, and db, which is linear in dc and a."""
    transposes = _transposes(c)
    of_dc: list[tuple[Tensor, Tensor]] = []
    gradients: dict[str, Any] = {}
    if c.need_da and gda is not None:
        of_dc.append((gda, c.b))
        gradients["b"] = lambda: f.matmul_backward(c.dc, gda, c.b, need_da=False, **transposes)[1]
    if c.need_db and gdb is not None:
        of_dc.append((c.a, gdb))
        gradients["a"] = lambda: f.matmul_backward(c.dc, None, gdb, need_db=False, **transposes)[0]

    def both() -> Tensor:
        terms = [f.matmul(f.compute(left), f.compute(right), **transposes) for left, right in of_dc]
        return f.cast(f.add(*terms), c.dc)

    if of_dc:
        gradients["dc"] = both if len(of_dc) == 2 else lambda: f.matmul(*of_dc[0], **transposes)
    return gradients


def _transposes(c: Any) -> dict[str, bool]:
    return {"transpose_a": c.transpose_a, "transpose_b": c.transpose_b}
