"""Seeds, from torch's own generators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedops import checks
from fusedops.torch import distributed, internals


def seed_of(function: str, seed: Any, x: Any) -> Any:
    """The seed tensor on x's device: the given tensor, a pair of integers as a tensor, or a new seed.

    An operator of torch draws a new seed, so torch.manual_seed repeats it, a captured CUDA graph draws at each replay,
    torch.utils.checkpoint draws the same again, and vmap requires `randomness`. Nothing here waits for the GPU, as a
    copy from the host would.
    """
    if hasattr(seed, "dtype"):  # a tensor or a proxy
        return seed
    device = x.device if isinstance(x, Tensor) else None  # the operator refuses other types
    if seed is None:
        made = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)
    else:
        key, offset = checks.pair_of_integers(function, "seed", seed)
        made = torch.full((2,), key, dtype=torch.int64, device=device)
        made[1:].fill_(offset)
    return distributed.agreed(made, x) if internals.is_distributed(x) else made
