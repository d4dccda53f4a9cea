"""DTensors in place of tensors: `strategies` registers what DTensor asks of an operator."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from fusedops.torch import internals

_STRATEGIES = "fusedops.torch.distributed.strategies"


@internals.before_tracing
def takes_dtensors() -> bool:
    """True if operators take DTensors: this version of PyTorch has the functions that register strategies."""
    return sys.modules.get(_STRATEGIES) is not None


def agreed(seed: Tensor, x: Any) -> Any:
    """A DTensor on the mesh of x, with the largest of the seeds that its processes have drawn."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    everywhere = x.device_mesh.ndim
    drawn = DTensor.from_local(seed, x.device_mesh, [Partial("max")] * everywhere, run_check=False)
    return drawn.redistribute(placements=[Replicate()] * everywhere)
