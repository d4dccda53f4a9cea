"""What attention is made of, beside matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.composite import derivative
from fusedops.gradients.registry import Tensor, gradient


@gradient("softmax_backward", saves=("dy", "y"))
def _softmax_backward(f: Any, c: Any, gdx: Tensor) -> Mapping[str, Any]:
    def plain(dy: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (c.scale * y * (dy - f.sum_last(dy * y)),)

    return derivative(f, c, plain, ("dy", "y"), (gdx,))
