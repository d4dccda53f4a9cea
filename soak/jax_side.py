"""The ways to call an operator in JAX, as source code, which is both run and printed on failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from soak.call import Call
from soak.layout import Tensor
from tests.helpers.frameworks import Backend

HEADER = 'import jax, fusedops.jax as fo; jax.config.update("jax_enable_x64", True)'
ARRAY = "np.asarray(x).astype(np.float64)"
LIST = "[x.tolist() for x in {results}]"

_BACKWARD = """\
outs, pull_back = jax.vjp(lambda {wanted}: f({tensors}), {wanted})
return *outs, *pull_back(({upstream},))"""
WAYS = {
    "forward": "return f({tensors})",
    "backward": _BACKWARD,
    "XLA": _BACKWARD,
    "jvp": """\
outs, tangents = jax.jvp(lambda {wanted}: f({tensors}), ({wanted},), ({tangents},))
return *outs, *tangents""",
    "double backward": """\
def first({wanted}, {upstream}):
    _, pull_back = jax.vjp(lambda {wanted}: f({tensors}), {wanted})
    return pull_back(({upstream},))
_, pull_back = jax.vjp(first, {wanted}, {upstream})
return pull_back(({directions},))""",
    "vmap": "return jax.vmap(f, ({dims},))({tensors})",
    "vmap of gradients": """\
def once({tensors}, {upstream}):
    outs, pull_back = jax.vjp(lambda {wanted}: f({tensors}), {wanted})
    return *outs, *pull_back(({upstream},))
return jax.vmap(once, ({dims}, {upstream_dims}))({tensors}, {upstream})""",
    "threads": _BACKWARD,
}
FUNCTIONS = {"XLA": "jax.jit({f})"}
CACHED_CALLS = 40  # JAX keeps 5 to 20 MB of traces and compiled code for each


def tensor_code(call: Call, name: str, x: Tensor, values: str, way: str) -> str:
    device = f"jax.devices({call.plan.device!r})[0]"
    return f"jax.numpy.array({values}, {x.dtype!r}, device={device}).reshape({x.shape})"


def settings_code(call: Call) -> list[str]:
    return []


class Side:
    def __init__(self, backend: Backend) -> None:
        import jax

        self.jax, self.backend = jax, backend
        self.globals = {"jax": jax, "fo": backend.functions}
        self.count = 0

    def tensor(self, call: Call, name: str, x: Tensor, way: str) -> Any:
        return self.backend.from_numpy(x.values)

    def prepare(self, call: Call) -> None:
        self.count += 1
        if self.count % CACHED_CALLS == 0:
            self.clear_caches()

    def fetch(self, results: Sequence[Any]) -> list[np.ndarray]:
        return [self.backend.to_numpy(x) for x in results]

    def clear_caches(self) -> None:
        """Clears the caches of traces and compiled code."""
        self.jax.clear_caches()

    def memory(self) -> int:
        """Bytes of GPU memory used by arrays."""
        return self.backend.at.memory_stats()["bytes_in_use"] if self.backend.device == "cuda" else 0
