"""The Keras layers under test: a table of calls, each with the Keras layer that is its reference."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.helpers.frameworks import Backend, import_tensorflow, installed
from tests.helpers.keras_models import exact_products
from tests.helpers.numerics import numbers

POLICIES = ("float64", "float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


@dataclass(frozen=True)
class Case:
    """A layer, its arguments, and the shape of its inputs."""

    layer: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 6, 8)
    inputs: int = 1
    is_fallback: bool = False  # True if Keras's own code computes it
    needs_gpu: bool = False  # True if Keras's own code computes it without a GPU

    def __str__(self) -> str:
        values = [f"{key}={value}" for key, value in self.arguments.items()]
        return "-".join([self.layer, *values, "x".join(map(str, self.shape))])

    @property
    def is_keras(self) -> bool:
        """True if Keras has a layer of this name."""
        return self.layer not in (
            "AddRMSNormalization",
            "AddLayerNormalization",
            "GatedDense",
            "RotaryEmbedding",
            "DropoutAdd",
        )


FUSED = (
    Case("RMSNormalization"),
    Case("RMSNormalization", {"axis": 2, "epsilon": 0.5}),
    Case("RMSNormalization", {"axis": [-1]}, shape=(5, 33)),
    Case("LayerNormalization"),
    Case("LayerNormalization", {"axis": 1, "epsilon": 0.5}, shape=(5, 33)),
    Case("LayerNormalization", {"axis": [2], "center": False}),
    Case("LayerNormalization", {"axis": (-1,), "scale": False}),
    Case("LayerNormalization", {"center": False, "scale": False}),
    Case("Softmax"),
    Case("Softmax", {"axis": 1}, shape=(5, 33)),
    Case("Softmax", {"axis": [-1]}),
    *(Case("Dense", {"units": 16, "activation": name}) for name in ("relu", "gelu", "silu", "tanh")),
    Case("Dense", {"units": 5, "activation": "swish", "use_bias": False}, shape=(7, 33)),
    Case("Dense", {"units": 5}, needs_gpu=True),
    Case("EinsumDense", {"equation": "abc,cde->abde", "output_shape": (None, 2, 5), "bias_axes": "de"}, needs_gpu=True),
    Case(
        "EinsumDense",
        {"equation": "abcd,cde->abe", "output_shape": (None, 5), "bias_axes": "e"},
        shape=(2, 3, 4, 5),
        needs_gpu=True,
    ),
    Case(
        "EinsumDense",
        {"equation": "...c,cd->...d", "output_shape": 5, "activation": "tanh"},
        shape=(7, 33),
        needs_gpu=True,
    ),
    Case("AddRMSNormalization", inputs=2),
    Case("AddRMSNormalization", {"axis": 1, "epsilon": 0.5}, shape=(5, 33), inputs=2),
    Case("AddLayerNormalization", inputs=2),
    Case("AddLayerNormalization", {"axis": [2], "center": False}, inputs=2),
    *(Case("GatedDense", {"units": 16, "activation": name}) for name in ("silu", "gelu", "gelu_tanh", "relu", None)),
    Case("GatedDense", {"units": 5, "activation": "sigmoid", "use_bias": False}, shape=(7, 33)),
    Case("Dropout", {"rate": 0.5, "seed": 3}),
    Case("DropoutAdd", {"rate": 0.5, "seed": 3}, inputs=2),
    Case("RotaryEmbedding"),
    Case("RotaryEmbedding", {"max_wavelength": 50, "scaling_factor": 4.0}, shape=(2, 5, 3, 8)),
    Case("RotaryEmbedding", {"sequence_axis": 2}, shape=(2, 3, 5, 8)),
    Case("RotaryEmbedding", {"sequence_axis": -2}, shape=(2, 3, 2, 5, 8)),
    Case("RotaryEmbedding", {"sequence_axis": 2, "feature_axis": 1}, shape=(2, 8, 5)),
    Case("RotaryEmbedding", {}, shape=(2, 5, 3, 2, 8)),
)
FALLBACKS = (
    *(
        Case(layer, {"axis": axis}, shape=(4, 8, 8), is_fallback=True)  # in Keras a scale of axis 1 must fit the last
        for layer in ("RMSNormalization", "LayerNormalization", "Softmax")
        for axis in (1, -2, [-1, -2])
    ),
    Case("LayerNormalization", {"rms_scaling": True}, is_fallback=True),
    Case("RMSNormalization", {"epsilon": None}, is_fallback=True),
    *(Case("Dense", {"units": 3, "activation": name}, is_fallback=True) for name in ("sigmoid", "softmax", "elu")),
    Case("Dense", {"units": 3, "use_bias": False}, is_fallback=True),
    Case("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (6, 3)}, is_fallback=True),
    Case("EinsumDense", {"equation": "abc,dc->abd", "output_shape": (6, 3), "bias_axes": "d"}, is_fallback=True),
    Case("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (6, 3), "bias_axes": "bd"}, is_fallback=True),
    Case("AddRMSNormalization", {"axis": 1}, shape=(4, 8, 8), inputs=2, is_fallback=True),
    Case("AddLayerNormalization", {"axis": [1, 2]}, inputs=2, is_fallback=True),
    Case("GatedDense", {"units": 3, "activation": "elu"}, is_fallback=True),
)


@pytest.fixture(autouse=True)
def products_of_float32() -> Iterator[None]:
    """Full float32 products, for the tests of a module that imports this fixture."""
    if not installed("tf"):
        yield
        return
    import_tensorflow()
    with exact_products():
        yield


def load_keras() -> Any:
    """Keras over TensorFlow. Called after the backend, which imports TensorFlow in the right order."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    return keras


def ours(case: Case, dtype: str, **arguments: Any) -> Any:
    import fusedops.tf.keras

    return getattr(fusedops.tf.keras, case.layer)(**case.arguments, **arguments, dtype=dtype)


def reference(case: Case, dtype: str, **arguments: Any) -> Any:
    """Keras's layer, or one composed of Keras's, with the same weights in the same order."""
    from tests.helpers import keras_references

    made_of = keras_references if hasattr(keras_references, case.layer) else load_keras().layers
    return getattr(made_of, case.layer)(**case.arguments, **arguments, dtype=dtype)


def tensors(case: Case, backend: Backend, dtype: str, random: np.random.Generator) -> Any:
    """Inputs of the layer: a tensor, or a list of tensors."""
    made = [backend.tensor(numbers(case.shape, random), dtype) for _ in range(case.inputs)]
    return made if case.inputs > 1 else made[0]


def set_random_weights(layers: Sequence[Any], random: np.random.Generator) -> None:
    """Sets the same weights in all layers, which are built."""
    weights = [numbers(weight.shape, random) for weight in layers[0].weights]
    for layer in layers:
        layer.set_weights(weights)


def value_and_gradients(backend: Any, layer: Any, inputs: Any, weights: Any = None) -> list[np.ndarray]:
    """The outputs of a layer, then the gradients of its inputs and of its weights, for a random upstream gradient."""
    tf, random = backend.tf, np.random.default_rng(0)
    weights = layer.trainable_variables if weights is None else weights
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf.nest.flatten(layer(inputs))
        upstream = [tf.cast(numbers(output.shape, random), output.dtype) for output in outputs]
    sources = [*tf.nest.flatten(inputs), *weights]
    found = tape.gradient(outputs, sources, upstream)
    return [tensor.numpy() for tensor in (*outputs, *map(tf.convert_to_tensor, found))]
