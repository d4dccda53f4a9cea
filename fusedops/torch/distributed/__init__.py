"""DTensors in place of tensors, and functions of tensors of which each process has a part.

`strategies` registers sharding strategies of the operators with DTensor.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops import lazy
from fusedops.torch import internals

if TYPE_CHECKING:
    from fusedops.torch.distributed.context_parallel import gather_positions as gather_positions
    from fusedops.torch.distributed.context_parallel import ring_attention as ring_attention
    from fusedops.torch.distributed.context_parallel import shard_positions as shard_positions
    from fusedops.torch.distributed.losses import cross_entropy as cross_entropy
    from fusedops.torch.distributed.losses import linear_cross_entropy as linear_cross_entropy
    from fusedops.torch.distributed.losses import linear_log_prob as linear_log_prob

_MODULES = {
    "context_parallel": ("gather_positions", "ring_attention", "shard_positions"),
    "losses": ("cross_entropy", "linear_cross_entropy", "linear_log_prob"),
}
_LAZY = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
if not TYPE_CHECKING:  # a checker would take any name for one of these
    __getattr__ = lazy.members(__name__, _LAZY)

__all__ = [*_LAZY]

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


def replicated(x: Tensor, other: Any) -> Any:
    """x, which is equal in all processes, as a DTensor on the mesh of another one."""
    from torch.distributed.tensor import DTensor, Replicate

    if internals.is_distributed(x):
        return x
    return DTensor.from_local(x, other.device_mesh, [Replicate()] * other.device_mesh.ndim, run_check=False)


def whole(x: Any) -> Tensor:
    """x as a plain tensor in every process, if it is a DTensor."""
    return x.full_tensor() if internals.is_distributed(x) else x


def notes_on_shards(parameters: Iterable[Tensor]) -> list[str]:
    """A line for the report of `convert`: the number of sharded parameters for each placement on a mesh."""
    every = list(parameters)
    sharded: list[Any] = [x for x in every if internals.is_distributed(x)]
    sharded = [x for x in sharded if not all(placement.is_replicate() for placement in x.placements)]
    if not sharded:
        return []
    counts = Counter((", ".join(map(repr, x.placements)), "×".join(map(str, x.device_mesh.shape))) for x in sharded)
    several = ", ".join(f"{count} {how} over {mesh} processes" for (how, mesh), count in sorted(counts.items()))
    return [f"{len(sharded)} of {len(every)} parameters are sharded: {several}"]
