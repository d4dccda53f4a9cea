"""JAX's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import model
import numpy as np
import plain_jax
from common.jax_side import Side

SHAPES = SimpleNamespace(gather=lambda table, tokens: table[tokens], reshape=jnp.reshape, split=jnp.split)


class JaxSide(Side):
    plain = plain_jax

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.angles = tuple(map(self.tensor, model.angles()))

    def logits(self, fo: Any, parameters: Mapping[str, jax.Array], tokens: jax.Array) -> jax.Array:
        return model.logits(fo, SHAPES, parameters, self.angles, tokens)

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """A function from tokens to logits."""
        parameters = self.parameters(arrays)
        predict = self.function(lambda parameters, tokens: self.logits(fo, parameters, tokens))
        return lambda tokens: np.asarray(predict(parameters, self.tensor(tokens)))

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""
        parameters = self.parameters(arrays)
        x, y = self.tensor(tokens), self.tensor(labels)
        step = self.function(jax.grad(lambda parameters: fo.cross_entropy(self.logits(fo, parameters, x), y)))
        return lambda: step(parameters)
