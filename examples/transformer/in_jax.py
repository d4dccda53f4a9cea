"""JAX's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import plain_jax
from common.jax_side import Side
from model import ModelSide


class JaxSide(ModelSide, Side):
    plain = plain_jax
    shapes = SimpleNamespace(gather=lambda table, tokens: table[tokens], reshape=jnp.reshape, split=jnp.split)

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """A function from tokens to logits."""
        parameters = self.parameters(arrays)
        predict = self.function(lambda parameters, tokens: self.logits(fo, parameters, tokens))
        return lambda tokens: np.asarray(predict(parameters, self.tensor(tokens)))
