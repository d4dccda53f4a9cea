"""TensorFlow's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import model
import numpy as np
import plain_tf
import tensorflow as tf
from common.tf_side import Side

SHAPES = SimpleNamespace(gather=tf.gather, reshape=tf.reshape, split=tf.split)


class TensorFlowSide(Side):
    plain = plain_tf

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.angles = tuple(map(self.tensor, model.angles()))

    def logits(self, fo: Any, parameters: Mapping[str, tf.Variable], tokens: tf.Tensor) -> tf.Tensor:
        values = {name: tf.convert_to_tensor(variable) for name, variable in parameters.items()}
        return model.logits(fo, SHAPES, values, self.angles, tokens)

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """A function from tokens to logits."""
        parameters = self.parameters(arrays)
        predict = self.function(lambda tokens: self.logits(fo, parameters, tokens), compiled)
        return lambda tokens: predict(self.tensor(tokens)).numpy()

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""
        parameters = self.parameters(arrays)
        x, y = self.tensor(tokens), self.tensor(labels)

        def step(x: tf.Tensor, y: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = fo.cross_entropy(self.logits(fo, parameters, x), y)
            return tape.gradient(loss, parameters)

        step = self.function(step, compiled)
        return lambda: step(x, y)
