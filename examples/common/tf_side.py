"""TensorFlow behind the examples' interface: tensors from numpy arrays and functions, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import fusedops.tf

tf.get_logger().setLevel("ERROR")  # suppress warnings about repeated tracing: each graph is a separate function


class Side:
    """Base class. An example's subclass adds the functions to compare, and `plain`, TensorFlow's own operators."""

    title = "TensorFlow"
    fused = fusedops.tf
    compiled = (False, True)  # eager and graph

    def __init__(self, device: str) -> None:
        self.device = f"/{device}:0"

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
        """The function on the device, as a graph if `compiled`."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self.device):
                return function(*tensors)

        return tf.function(placed) if compiled else placed

    def step_of(self, loss: Callable[..., Any], parameters: Any, x: Any, y: Any, compiled: bool) -> Callable[[], Any]:
        """Forward and backward of loss(parameters, x, y), to be timed."""

        def step(x: tf.Tensor, y: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                value = loss(parameters, x, y)
            return tape.gradient(value, parameters)

        step = self.function(step, compiled)
        return lambda: step(x, y)

    def wait(self) -> None:
        """Waits for the GPU."""
        if "GPU" in self.device:
            tf.test.experimental.sync_devices()
