# %% [markdown]
# # A Keras transformer, converted
#
# `fusedops.tf.keras.convert(model)` switches the layers of a Keras model to fusedops's kernels: in place, with the same
# weights, names and optimizer. This page converts two transformers, one made of Keras's own layers and KerasHub's
# Llama, and measures both before and after.
#
# `make docs` runs the page from top to bottom; the output of each piece of code is below it. With
# `make docs ARGS=--quick`, and without a GPU, all sizes are small.

# %%
import gc
import os
import platform
import sys
from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf

import fusedops
from benchmarks.implementations.tf.switching import draw, measure, table
from fusedops.tf import xla
from fusedops.tf.keras import convert

assert xla.fault is None, xla.fault  # XLA is one of the ways that are measured
tf.get_logger().setLevel("ERROR")  # it warns of the many functions that are traced here, each of them once

gpus = tf.config.list_physical_devices("GPU")
SMALL = not gpus or "--quick" in sys.argv
POLICY = "mixed_bfloat16" if gpus else "float32"

if gpus:
    device = tf.config.experimental.get_device_details(gpus[0])["device_name"]
else:
    device = f"no GPU: {platform.machine()} CPU"
print(f"{device}, {os.cpu_count()} CPU cores, {POLICY}")
print(f"fusedops {fusedops.__version__}, TensorFlow {tf.__version__}, Keras {keras.__version__}, ", end="")
print(f"Python {platform.python_version()}")

# %% [markdown]
# ## A model of Keras's own layers
#
# A decoder-only transformer that reads bytes and predicts the next one. It has no position embedding: the causal mask
# is enough to tell positions apart.

# %%
VOCABULARY = 256
LAYERS, WIDTH, HEADS, LENGTH, BATCH = (2, 64, 4, 64, 4) if SMALL else (4, 2048, 16, 1024, 8)


def transformer(policy):
    keras.config.set_dtype_policy(policy)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(tokens)
    for _ in range(LAYERS):
        h = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(h, h, use_causal_mask=True)
        h = keras.layers.LayerNormalization()(x)
        h = keras.layers.Dense(4 * WIDTH, activation="gelu")(h)
        x = x + keras.layers.Dense(WIDTH)(h)
    logits = keras.layers.Dense(VOCABULARY)(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, logits, name="transformer")


keras.utils.set_random_seed(0)
model = transformer(POLICY)
model.compile(
    keras.optimizers.Adam(1e-3 if SMALL else 1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
print(f"{model.count_params():,} weights")

# %% [markdown]
# The training text is Python's own help. On a GPU, Keras compiles the training step with XLA by default.

# %%
text = np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8)
random = np.random.default_rng(0)


def windows(count, length):
    """Bytes of the text, and those that follow them."""
    starts = random.integers(0, len(text) - length, count)
    found = text[starts[:, None] + np.arange(length + 1)].astype("int32")
    return found[:, :-1], found[:, 1:]


x, y = windows((20 if SMALL else 50) * BATCH, LENGTH)


def train(model):
    losses = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0).history["loss"]
    print("loss, epoch by epoch:", ", ".join(f"{loss:.3f}" for loss in losses))


train(model)

# %% [markdown]
# ## One line
#
# `convert` prints what it replaced, what it did not, and why.

# %%
exact = transformer("float64")
exact.set_weights(model.get_weights())


def error(model, exact, x):
    """The relative error of the logits against float64."""
    truth = exact(x).numpy()
    return np.linalg.norm(model(x).numpy().astype("float64") - truth) / np.linalg.norm(truth)


before = error(model, exact, x[:2])
convert(model)
after = error(model, exact, x[:2])
print(f"error of the logits: {before:.1e} before, {after:.1e} after")
assert after < 2 * before
del exact

# %% [markdown]
# The optimizer kept its state, so training continues.

# %%
train(model)

# %% [markdown]
# ## Step time and memory
#
# A training step, as `fit` and `train_on_batch` run it: eagerly, as a graph, and compiled by XLA. Keras's layers and
# fusedops's take turns on the same weights and the same batch: `revert` undoes `convert`. The code that measures is in
# `benchmarks/implementations/tf/switching.py`.

# %%
TURNS = 3 if SMALL else 15
measured = {"Transformer": measure(model, x[:BATCH], y[:BATCH], TURNS)}
print(table(measured["Transformer"]))

# %% [markdown]
# ## A Llama
#
# Two layers of the size of Llama 3 8B, with a small vocabulary. The backbone is
# [KerasHub's](https://keras.io/keras_hub/), made from a config, with random weights.

# %%
del model
gc.collect()  # the memory of the next one is counted without it

LLAMA_LENGTH = 128 if SMALL else 4096
WIDTHS = {"hidden_dim": 128, "intermediate_dim": 448} if SMALL else {"hidden_dim": 4096, "intermediate_dim": 14336}
CONFIG = {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_query_heads": 32, "num_key_value_heads": 8, **WIDTHS}


def llama(policy):
    keras.config.set_dtype_policy(policy)
    backbone = keras_hub.models.LlamaBackbone(**CONFIG)
    logits = backbone.token_embedding(backbone.output, reverse=True)
    return keras.Model(backbone.input, logits, name="llama")


try:
    import keras_hub
except ImportError:
    print("KerasHub is not installed: there is no Llama on this page.")
else:
    print(f"KerasHub {keras_hub.__version__}")
    keras.utils.set_random_seed(0)
    model, exact = llama(POLICY), llama("float64")
    exact.set_weights(model.get_weights())
    model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = windows(1, LLAMA_LENGTH)
    x = {"token_ids": x, "padding_mask": np.ones_like(x)}
    before = error(model, exact, x)
    convert(model)
    after = error(model, exact, x)
    print(f"error of the logits: {before:.1e} before, {after:.1e} after")
    assert after < 2 * before
    del exact
    gc.collect()
    measured["Llama"] = measure(model, x, y, TURNS)
    print(table(measured["Llama"]))

# %% [markdown]
# ## A loss without logits
#
# With a large vocabulary, logits and their gradients take more memory than anything else. With `fuse_loss=True`, a
# step makes none: the loss is computed from the last hidden states. Metrics read logits, and KerasHub compiles its
# models with one, so this one is compiled without. A call returns logits as before.

# %%
if "Llama" not in measured:
    print("KerasHub is not installed: there is no Llama on this page.")
else:
    del model
    gc.collect()
    model = keras_hub.models.LlamaCausalLM(backbone=keras_hub.models.LlamaBackbone(**CONFIG), preprocessor=None)
    model.compile(keras.optimizers.SGD(1e-3), weighted_metrics=[])
    convert(model, verbose=False, fuse_loss=True)
    assert np.isfinite(model.train_on_batch(x, y))
    print("logits of a call:", *model(x).shape)

# %% [markdown]
# ## Picture

# %%
draw(measured, "keras.png")

# %% [markdown]
# ![Step time and peak memory, before and after](keras.png)
