"""The state of the GPU's L2 cache when a timed call starts.

Cold, tensors of at least CACHE_MULTIPLE times the cache: each call evicts its own inputs.
Cold, smaller tensors: calls rotate over copies of the inputs, each with its own output, and the cache is flushed before
each timed turn over all copies.
Warm, the same inputs at each call: "seeds", as in published figures, and "launch, one buffer".
Not defined: "python" and the sections of calls, which measure the host.

TensorFlow's clock is the host's, and a flush between calls would disturb it: its cases on a GPU are large. On the CPU
nothing is flushed: inputs that fit into its caches are warm for all implementations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.cases.case import Case

CACHE_MULTIPLE = 4  # smaller inputs and outputs are partly still cached at the next call
MAX_COPIES = 128
BUDGET = 2**30  # bytes for all copies


def copies(case: Case, values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The inputs, followed by copies over which calls rotate, if needed."""
    if case.device == "cpu" or case.cache != "cold" or not 0 < case.bytes < CACHE_MULTIPLE * cache_size():
        return [values]
    count = max(2, min(MAX_COPIES, int(BUDGET / case.bytes)))
    return [values, *({name: _copy(value) for name, value in values.items()} for _ in range(count - 1))]


@functools.cache
def cache_size() -> int:
    return torch.cuda.get_device_properties(0).L2_cache_size


def flush() -> None:
    """Flushes the cache by reading: written lines would be written back while the next kernel is timed."""
    torch.sum(_buffer())


@functools.cache
def _buffer() -> torch.Tensor:
    return torch.ones(CACHE_MULTIPLE * cache_size() // 4, device="cuda")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
