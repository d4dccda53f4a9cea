"""TensorFlow's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import model
import numpy as np
import plain_tf
import tensorflow as tf

import fusedops.tf

tf.get_logger().setLevel("ERROR")  # or it warns that many graphs are traced: each is a function of its own here

SHAPES = SimpleNamespace(gather=tf.gather, reshape=tf.reshape, transpose=tf.transpose, unstack=tf.unstack)


class TensorFlowSide:
    title = "TensorFlow"
    fused = fusedops.tf
    plain = plain_tf
    compiled = (False, True)  # eager, and as a graph

    def __init__(self, device: str) -> None:
        self.device = f"/{device}:0"
        self.angles = tuple(map(self.tensor, model.angles()))

    @staticmethod
    def has_gpu() -> bool:
        return bool(tf.config.list_physical_devices("GPU"))

    def tensor(self, array: np.ndarray) -> tf.Tensor:
        with tf.device(self.device):
            return tf.identity(array)

    def parameters(self, arrays: Mapping[str, np.ndarray]) -> dict[str, tf.Variable]:
        with tf.device(self.device):
            return {name: tf.Variable(array) for name, array in arrays.items()}

    def function(self, function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
        """On the device, and as a graph if wanted."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self.device):
                return function(*tensors)

        return tf.function(placed) if compiled else placed

    def logits(self, fo: Any, parameters: Mapping[str, tf.Variable], tokens: tf.Tensor) -> tf.Tensor:
        values = {name: tf.convert_to_tensor(variable) for name, variable in parameters.items()}
        return model.logits(fo, SHAPES, values, self.angles, tokens)

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """The logits of tokens."""
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

    def wait(self) -> None:
        """Until the GPU has done what was asked."""
        if "GPU" in self.device:
            tf.test.experimental.sync_devices()
