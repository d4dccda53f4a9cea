"""Keras's layers and those of fusedops.tf.keras; and training steps of KerasHub's Llama, converted and not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

import fusedops.tf.keras as fk
from benchmarks.cases.case import Case
from benchmarks.measuring.timing import Build, Call, Clock, Contender
from benchmarks.operators import OPERATORS

tf.get_logger().setLevel("ERROR")  # it warns of the many functions that are traced here, each of them once

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


def contenders(case: Case, values: Mapping[str, Any], clock: Callable[[], Clock]) -> dict[str, Build]:
    if case.is_model:
        return _of_llama(case, clock)
    wraps = {
        "": lambda function: function,
        "graph": partial(tf.function, autograph=False),
        "XLA": partial(tf.function, autograph=False, jit_compile=True),
    }

    def build(layers: Any, wrap: Callable[[Call], Call]) -> Contender:
        # Keras's results are not checked: whatever their errors, theirs is the time to compare with.
        return Contender(_call(case, layers, values, wrap), clock(), checked=layers is fk)

    result = {}
    for mode, wrap in wraps.items():
        result[f"fusedops, {mode}" if mode else "fusedops"] = partial(build, fk, wrap)
        result[mode or "eager"] = partial(build, keras.layers, wrap)
    return result


def _call(case: Case, layers: Any, values: Mapping[str, Any], wrap: Callable[..., Any]) -> Call:
    """A layer's output; or that, and the gradients of its input and its weights."""
    keras_layer = OPERATORS[case.operator].keras
    assert keras_layer  # of other operators there are no such cases
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
        # The output as well: in a model something always uses it. Without it, XLA would leave the forward out.
        return [y, *tape.gradient(y, wanted, dout)]

    return partial(wrap(step), x, values["dout"])


def _of_llama(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    """All train the same model: a function that Keras traced keeps the layers that it has seen."""
    import keras_hub  # if it is missing, that is what the table says

    batch, length = case.shape
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(f"mixed_{case.dtype}" if case.parameters else case.dtype)
    try:
        backbone = keras_hub.models.LlamaBackbone(**LLAMAS[case.device])
    finally:
        keras.config.set_dtype_policy(policy)
    model = keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True))
    tokens = tf.random.uniform((batch, length), maxval=VOCABULARY, dtype=tf.int32)
    inputs = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
    batches = iter(tf.data.Dataset.from_tensors((inputs, tokens)).repeat())

    def build(switch: Callable[[Any], Any], jit_compile: bool) -> Contender:
        switch(model)  # before Keras asks the layers whether XLA compiles them
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e-4), loss, jit_compile=jit_compile)
        switch(model)  # with its loss
        if model.jit_compile is not jit_compile:
            raise RuntimeError("XLA does not compile this model")
        model.make_train_function()
        return Contender(partial(model.train_function, batches), clock(), checked=False)

    convert = partial(fk.convert, verbose=False)
    return {
        "fusedops, graph": partial(build, convert, False),
        "graph": partial(build, fk.revert, False),
        "fusedops, XLA": partial(build, convert, True),
        "XLA": partial(build, fk.revert, True),
    }
