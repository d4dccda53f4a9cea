"""Seeds, from torch's own generators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedops import checks
from fusedops.torch import distributed, internals


def seed_of(function: str, seed: Any, x: Any) -> Any:
    """The seed as an operator takes it, where x is: a tensor as it was given, of a pair of integers, or drawn.

    An operator of torch's draws it, which torch's generators, compilers and transforms know: torch.manual_seed repeats
    it, a captured CUDA graph draws at each replay, torch.utils.checkpoint draws it again, and vmap asks for a
    `randomness`. Nothing here waits for the GPU, as copying numbers to it would.
    """
    if hasattr(seed, "dtype"):  # a tensor, or what stands for one
        return seed
    device = x.device if isinstance(x, Tensor) else None  # the operator refuses what is no tensor
    if seed is None:
        made = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)
    else:
        key, offset = checks.pair_of_integers(function, "seed", seed)
        made = torch.full((2,), key, dtype=torch.int64, device=device)
        made[1:].fill_(offset)
    return distributed.agreed(made, x) if internals.is_distributed(x) else made
