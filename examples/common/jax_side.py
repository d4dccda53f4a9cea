"""JAX behind the examples' interface: arrays from numpy arrays and jitted functions, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import fusedops.jax


class Side:
    """Base class. An example's subclass adds the functions to compare, and `plain`, JAX's own operators."""

    title = "JAX"
    fused = fusedops.jax
    compiled = (True,)

    def __init__(self, device: str) -> None:
        self.device = jax.devices({"GPU": "gpu", "CPU": "cpu"}[device])[0]

    @staticmethod
    def has_gpu() -> bool:
        return jax.default_backend() == "gpu"

    def tensor(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array, self.device)

    def parameters(self, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        return {name: self.tensor(array) for name, array in arrays.items()}

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The jitted function, which returns when its result is there."""
        jitted = jax.jit(function)
        return lambda *arrays: jax.block_until_ready(jitted(*arrays))

    def step_of(self, loss: Callable[..., Any], parameters: Any, x: Any, y: Any, compiled: bool) -> Callable[[], Any]:
        """Forward and backward of loss(parameters, x, y), to be timed."""
        step = self.function(jax.grad(loss))
        return lambda: step(parameters, x, y)

    def wait(self) -> None:
        """Nothing: each function has waited."""
