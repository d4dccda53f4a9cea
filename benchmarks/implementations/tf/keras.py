"""Keras's layers and those of fusedops.tf.keras, and training steps of models, converted and not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

import fusedops.tf.keras as fk
from benchmarks.cases.case import Case
from benchmarks.measuring.timing import Build, Call, Clock, Implementation
from benchmarks.operators import OPERATORS
from benchmarks.operators.models import ENCODER

tf.get_logger().setLevel("ERROR")  # suppress warnings about repeated tracing

VOCABULARY = 1024
LLAMAS = {
    "cuda": {
        "vocabulary_size": VOCABULARY,
        "num_layers": 2,
        "hidden_dim": 4096,
        "num_query_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_dim": 14336,
    },
    "cpu": {
        "vocabulary_size": VOCABULARY,
        "num_layers": 2,
        "hidden_dim": 128,
        "num_query_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_dim": 448,
    },
}
# (layers, width, heads, vocabulary)
ENCODERS = {"cuda": (6, 1024, 16, 32_000), "cpu": (1, 64, 4, 256)}


def implementations(case: Case, values: Mapping[str, Any], clock: Callable[[], Clock]) -> dict[str, Build]:
    if case.is_model:
        return _steps(case, clock)
    wraps = {
        "": lambda function: function,
        "graph": partial(tf.function, autograph=False),
        "XLA": partial(tf.function, autograph=False, jit_compile=True),
    }

    def build(layers: Any, wrap: Callable[[Call], Call]) -> Implementation:
        # Keras's results are not checked: its time is the baseline whatever its accuracy.
        return Implementation(_call(case, layers, values, wrap), clock(), checked=layers is fk)

    result = {}
    for mode, wrap in wraps.items():
        result[f"fusedops, {mode}" if mode else "fusedops"] = partial(build, fk, wrap)
        result[mode or "eager"] = partial(build, keras.layers, wrap)
    return result


def _call(case: Case, layers: Any, values: Mapping[str, Any], wrap: Callable[..., Any]) -> Call:
    """A call that returns a layer's output, and for backward cases the gradients of its input and weights."""
    keras_layer = OPERATORS[case.operator].keras
    assert keras_layer  # cases.models selects operators with a Keras layer
    name, epsilon = keras_layer
    policy = f"mixed_{case.dtype}" if case.parameters else case.dtype
    layer = getattr(layers, name)(epsilon=epsilon, dtype=policy)
    layer.build(case.shape)
    x, *weights = (value for key, value in values.items() if key != "dout")
    for variable, weight in zip(layer.trainable_variables, weights, strict=True):
        variable.assign(weight)
    if "backward" not in case.variant:
        return partial(wrap(lambda x: layer(x)), x)

    def step(x: tf.Tensor, dout: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        wanted = [x, *(variable.value for variable in layer.trainable_variables)]
        # Includes the output, which a model always uses: without it, XLA would eliminate the forward.
        return [y, *tape.gradient(y, wanted, dout)]

    return partial(wrap(step), x, values["dout"])


def _llama(case: Case) -> tuple[keras.Model, Any]:
    """KerasHub's Llama and a batch."""
    import keras_hub  # an ImportError becomes the row's problem

    backbone = keras_hub.models.LlamaBackbone(**LLAMAS[case.device])
    model = keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True))
    tokens = tf.random.uniform(case.shape, maxval=VOCABULARY, dtype=tf.int32)
    return model, ({"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}, tokens)


def _encoder(case: Case) -> tuple[keras.Model, Any]:
    """An encoder of Keras's layers and a batch."""
    layers, width, heads, vocabulary = ENCODERS[case.device]
    tokens = keras.Input(case.shape[1:], dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(layers):
        h = keras.layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = keras.layers.LayerNormalization()(x + h)
        h = keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(x))
        x = keras.layers.LayerNormalization()(x + h)
    model = keras.Model(tokens, keras.layers.Dense(2)(x[:, 0]))
    inputs = tf.random.uniform(case.shape, maxval=vocabulary, dtype=tf.int32)
    return model, (inputs, tf.zeros(case.shape[0], tf.int32))


def _steps(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    """Implementations that all train the same model: a function that Keras traced keeps the layers it was traced
    with."""
    make, optimizer = (_encoder, keras.optimizers.AdamW) if case.operator == ENCODER else (_llama, keras.optimizers.SGD)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(f"mixed_{case.dtype}" if case.parameters else case.dtype)
    try:
        model, batch = make(case)
    finally:
        keras.config.set_dtype_policy(policy)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())

    def build(switch: Callable[[Any], Any], jit_compile: bool) -> Implementation:
        switch(model)  # first, because compile() asks the layers if they support XLA
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(1e-4), loss, jit_compile=jit_compile)
        switch(model)  # again, now with loss and optimizer
        if model.jit_compile is not jit_compile:
            raise RuntimeError("XLA does not compile this model")
        model.make_train_function()
        return Implementation(partial(model.train_function, batches), clock(), checked=False)

    convert = partial(fk.convert, verbose=False)
    return {
        "fusedops, graph": partial(build, convert, False),
        "graph": partial(build, fk.revert, False),
        "fusedops, XLA": partial(build, convert, True),
        "XLA": partial(build, fk.revert, True),
    }
