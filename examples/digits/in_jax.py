"""JAX's side: the network's logits, gradients and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import network
import numpy as np
import plain_jax
from common.jax_side import Side


class JaxSide(Side):
    plain = plain_jax

    def logits(self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, compiled: bool) -> np.ndarray:
        logits = self.function(lambda parameters, x: network.logits(fo, parameters, x))
        return np.asarray(logits(self.parameters(arrays), self.tensor(images)))

    def gradients(
        self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, upstream: np.ndarray, compiled: bool
    ) -> dict[str, np.ndarray]:
        """The gradients of the parameters for an upstream gradient of the logits."""

        def gradients(parameters: Mapping[str, jax.Array], x: jax.Array, dy: jax.Array) -> Any:
            _, pull_back = jax.vjp(lambda parameters: network.logits(fo, parameters, x), parameters)
            return pull_back(dy)[0]

        found = self.function(gradients)(self.parameters(arrays), self.tensor(images), self.tensor(upstream))
        return {name: np.asarray(gradient) for name, gradient in found.items()}

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""

        def loss(parameters: Mapping[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
            scores = jax.nn.log_softmax(network.logits(fo, parameters, x))
            return -jnp.take_along_axis(scores, y[:, None], -1).mean()

        return self.step_of(loss, self.parameters(arrays), self.tensor(images), self.tensor(labels), compiled)

    def axpby(self, fo: Any, x: np.ndarray, b: np.ndarray, compiled: bool, backward: bool) -> Callable[[], Any]:
        """One large a·x + b, with or without its gradients, to be timed."""
        tensors = [self.tensor(array) for array in (np.full(1, 0.5, np.float32), x, b)]
        upstream = jnp.ones_like(tensors[1])

        def gradients(*tensors: jax.Array) -> Any:
            y, pull_back = jax.vjp(fo.axpby, *tensors)
            return y, pull_back(upstream)  # with y, which XLA would otherwise not compute

        call = self.function(gradients if backward else fo.axpby)
        return lambda: call(*tensors)
