"""The ways to call an operator in TensorFlow, as source code, which is both run and printed on failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from soak.call import Call
from soak.layout import Tensor
from soak.torch_side import split
from tests.helpers.frameworks import Backend

HEADER = "import tensorflow as tf, fusedops.tf as fo"
ARRAY = "tf.cast(x, tf.float64).numpy()"
LIST = "[x.numpy().tolist() for x in {results}]"

_BACKWARD = """\
with tf.device("{device}"), tf.GradientTape() as tape:
    tape.watch([{wanted}])
    outs = f({tensors})
    return *outs, *tape.gradient(outs, [{wanted}], [{upstream}])"""
WAYS = {
    "forward": 'with tf.device("{device}"): return f({tensors})',
    "backward": _BACKWARD,
    "graph": _BACKWARD,
    "XLA": _BACKWARD,
    "jvp": """\
with tf.device("{device}"), tf.autodiff.ForwardAccumulator([{wanted}], [{tangents}]) as accumulator:
    outs = f({tensors})
    return *outs, *accumulator.jvp(outs)""",
    "double backward": """\
with tf.device("{device}"), tf.GradientTape() as outer:
    outer.watch([{wanted}, {upstream}])
    with tf.GradientTape() as tape:
        tape.watch([{wanted}])
        outs = f({tensors})
    first = tape.gradient(outs, [{wanted}], [{upstream}])
    return outer.gradient(first, [{wanted}, {upstream}], [{directions}], tf.UnconnectedGradients.ZERO)""",
    "vmap": """\
with tf.device("{device}"):
    return tf.vectorized_map(lambda mapped: (lambda {mapped}: f({tensors}))(*mapped), ({mapped},))""",
    "vmap of gradients": """\
def once({mapped}, {upstream}):
    with tf.GradientTape() as tape:
        tape.watch([{wanted}])
        outs = f({tensors})
    return *outs, *tape.gradient(outs, [{wanted}], [{upstream}])
with tf.device("{device}"):
    return tf.vectorized_map(lambda slices: once(*slices), ({mapped}, {upstream},))""",
    "threads": _BACKWARD,
}
FUNCTIONS = {
    "graph": "tf.function({f}, autograph=False, reduce_retracing=True)",
    "XLA": "tf.function({f}, autograph=False, jit_compile=True)",
}
DEVICES = {"cpu": "/CPU:0", "cuda": "/GPU:0"}


def tensor_code(call: Call, name: str, x: Tensor, values: str, way: str) -> str:
    return f"tf.reshape(tf.constant({values}, tf.{x.dtype}), {x.shape})"


def settings_code(call: Call) -> list[str]:
    return []


class Side:
    def __init__(self, backend: Backend) -> None:
        from tensorflow.python.eager import context

        self.tf, self.backend, self.context = backend.tf, backend, context
        self.globals = {"tf": self.tf, "fo": backend.functions}

    def tensor(self, call: Call, name: str, x: Tensor, way: str) -> Any:
        return self.backend.from_numpy(x.values)

    def prepare(self, call: Call) -> None:
        pass

    def fetch(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Copies the results to the host, from a GPU in one transfer: each copy waits for the other processes."""
        if self.backend.device == "cpu":
            return [self.backend.to_numpy(x) for x in results]
        tf = self.tf
        with self.backend.place:
            parts = tf.concat([tf.reshape(tf.bitcast(x, tf.uint8), [-1]) for x in results], 0)
        return split(parts.numpy(), [(x.dtype.name, x.shape) for x in results])

    def clear_caches(self) -> None:
        """Clears the caches of eager mode: zeros, scalars, and a kernel for every set of attributes."""
        context = self.context.context()
        context._clear_caches()
        context.clear_kernel_cache()

    def memory(self) -> int:
        """Bytes of GPU memory used by tensors."""
        return self.tf.config.experimental.get_memory_info("GPU:0")["current"] if self.backend.device == "cuda" else 0
