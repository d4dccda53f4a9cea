"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.registry import Tensor, gradient


@gradient("matmul_backward", saves=("dc", "a", "b"))
def _matmul_backward(f: Any, c: Any, gda: Tensor | None, gdb: Tensor | None) -> Mapping[str, Any]:
    """Of da, which is linear in dc and b, and db, which is linear in dc and a."""
    transposes = {"transpose_a": c.transpose_a, "transpose_b": c.transpose_b}
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
