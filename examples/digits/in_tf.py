"""TensorFlow's side: the network's logits, gradients and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import network
import numpy as np
import plain_tf
import tensorflow as tf
from common.tf_side import Side


class TensorFlowSide(Side):
    plain = plain_tf

    def logits(self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, compiled: bool) -> np.ndarray:
        parameters = self.parameters(arrays)
        logits = self.function(lambda x: network.logits(fo, parameters, x), compiled)
        return logits(self.tensor(images)).numpy()

    def gradients(
        self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, upstream: np.ndarray, compiled: bool
    ) -> dict[str, np.ndarray]:
        """The gradients of the parameters for an upstream gradient of the logits."""
        parameters = self.parameters(arrays)

        def gradients(x: tf.Tensor, dy: tf.Tensor) -> dict[str, tf.Tensor]:
            with tf.GradientTape() as tape:
                logits = network.logits(fo, parameters, x)
            return tape.gradient(logits, parameters, dy)

        result = self.function(gradients, compiled)(self.tensor(images), self.tensor(upstream))
        return {name: gradient.numpy() for name, gradient in result.items()}

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""

        def loss(parameters: Mapping[str, tf.Variable], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            scores = network.logits(fo, parameters, x)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores))

        return self.step_of(loss, self.parameters(arrays), self.tensor(images), self.tensor(labels), compiled)

    def axpby(self, fo: Any, x: np.ndarray, b: np.ndarray, compiled: bool, backward: bool) -> Callable[[], Any]:
        """One large a·x + b, with or without its gradients, to be timed."""
        tensors = [self.tensor(array) for array in (np.full(1, 0.5, np.float32), x, b)]
        upstream = tf.ones_like(tensors[1])

        def gradients(*tensors: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                y = fo.axpby(*tensors)
            return y, tape.gradient(y, tensors, upstream)  # with y, which the graph would otherwise not compute

        call = self.function(gradients if backward else fo.axpby, compiled)
        return lambda: call(*tensors)
