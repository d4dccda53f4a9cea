"""TensorFlow's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import plain_tf
import tensorflow as tf
from common.tf_side import Side
from model import ModelSide


class TensorFlowSide(ModelSide, Side):
    plain = plain_tf
    shapes = SimpleNamespace(gather=tf.gather, reshape=tf.reshape, split=tf.split)

    def logits(self, fo: Any, parameters: Mapping[str, tf.Variable], tokens: tf.Tensor) -> tf.Tensor:
        values = {name: tf.convert_to_tensor(variable) for name, variable in parameters.items()}
        return super().logits(fo, values, tokens)

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """A function from tokens to logits."""
        parameters = self.parameters(arrays)
        predict = self.function(lambda tokens: self.logits(fo, parameters, tokens), compiled)
        return lambda tokens: predict(self.tensor(tokens)).numpy()
