"""What the GPU's L2 cache holds when a timed call starts: decided here and nowhere else.

Cold, where the tensors are larger than FITS caches: each call evicts what it has read, and nothing has to be done.
Cold, where they are smaller: calls take turns over copies of the inputs, each with an output of its own, and before a
turn over all copies is timed, the cache is filled with something else.
Warm, the same inputs at each call: "seeds", as in what others have published, and "launch, one buffer".
Neither: "python" and the sections of calls, where it is the host that is measured.

TensorFlow's clock is the host's, which a flush between calls would disturb: its rows on a GPU are large ones. On the
CPU nothing is flushed: inputs that fit into its caches are warm there, for all contenders alike.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.cases.case import Case

FITS = 4  # times the cache: inputs and outputs of less are in part still there at the next call
MOST_COPIES = 128
BUDGET = 2**30  # bytes of all copies


def copies(case: Case, values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The inputs, and as many copies as the calls take turns over."""
    if case.device == "cpu" or case.cache != "cold" or not 0 < case.bytes < FITS * cache_size():
        return [values]
    count = max(2, min(MOST_COPIES, int(BUDGET / case.bytes)))
    return [values, *({name: _copy(value) for name, value in values.items()} for _ in range(count - 1))]


@functools.cache
def cache_size() -> int:
    return torch.cuda.get_device_properties(0).L2_cache_size


def flush() -> None:
    """By reading: written lines would be carried to memory while the next kernel is timed."""
    torch.sum(_buffer())


@functools.cache
def _buffer() -> torch.Tensor:
    return torch.ones(FITS * cache_size() // 4, device="cuda")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
