"""Run by tests/keras/test_backends.py on each backend of Keras: saves the results and gradients of the layers of
fusedops.keras, loads a model that the other backend has saved, and trains and saves one. Argument: a folder."""

import sys
import warnings
from pathlib import Path

import keras
import numpy as np

import fusedops.keras as fk
from fusedops.keras_layers import backend

FOLDER, BACKEND = Path(sys.argv[1]), keras.backend.backend()
backend.own.has_gpu = lambda: True  # so that Dense and EinsumDense take the kernel
LABELS = np.array([[0, 2, 1], [2, 0, 0]])
OPTIONS = {  # of a call, by a word of the layer's name
    "Loss": {"labels": LABELS},
    "causal": {"use_causal_mask": True},
    "mask": {"attention_mask": np.array([[[1, 0, 1], [0, 0, 0], [0, 1, 0]]] * 2, bool)},
    "scores": {"return_attention_scores": True, "use_causal_mask": True},
}
LAYERS = {
    "RMSNormalization": (fk.RMSNormalization(), 1),
    "LayerNormalization": (fk.LayerNormalization(), 1),
    "AddRMSNormalization": (fk.AddRMSNormalization(), 2),
    "AddLayerNormalization": (fk.AddLayerNormalization(), 2),
    "Softmax": (fk.Softmax(), 1),
    "Dense": (fk.Dense(5, activation="gelu"), 1),
    "EinsumDense": (fk.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), 1),
    "GatedDense": (fk.GatedDense(4), 1),
    "RotaryEmbedding": (fk.RotaryEmbedding(), 1),
    "RotaryEmbedding, transposed": (fk.RotaryEmbedding(sequence_axis=2, feature_axis=1), 1),
    "MultiHeadAttention": (fk.MultiHeadAttention(2, 4), 2),
    "MultiHeadAttention, causal": (fk.MultiHeadAttention(2, 4), 2),
    "MultiHeadAttention, mask": (fk.MultiHeadAttention(2, 4), 2),
    "MultiHeadAttention, scores": (fk.MultiHeadAttention(2, 4), 2),
    "GroupQueryAttention": (fk.GroupQueryAttention(4, 4, 2), 2),
    "LinearCrossEntropyLoss": (fk.LinearCrossEntropyLoss(3, class_weight=[1.0, 2.0, 0.5], reduction="none"), 1),
}


def differentiated(layer, inputs, **options):
    """The outputs, then the gradients of the inputs and of the weights, for upstream gradients of ones."""
    weights = layer.trainable_variables
    if BACKEND == "jax":
        import jax

        def call(values, inputs):
            outputs, _ = layer.stateless_call(values, layer.non_trainable_variables, *inputs, **options)
            return keras.tree.flatten(outputs)

        outputs, pull_back = jax.vjp(call, [weight.value for weight in weights], inputs)
        of_weights, of_inputs = pull_back([*map(keras.ops.ones_like, outputs)])
        return [*outputs, *keras.tree.flatten(of_inputs), *of_weights]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = keras.tree.flatten(layer(*inputs, **options))
    sources = [*keras.tree.flatten(inputs), *(weight.value for weight in weights)]
    return [*outputs, *tape.gradient(outputs, sources, [*map(tf.ones_like, outputs)])]


def layers():
    found = {}
    for name, (layer, count) in LAYERS.items():
        random = np.random.default_rng(0)
        shape = (2, 8, 3) if "transposed" in name else (2, 3, 8)
        inputs = [keras.ops.convert_to_tensor(random.normal(size=shape), "float32") for _ in range(count)]
        inputs = inputs if count > 1 else inputs[0]
        options = next((options for word, options in OPTIONS.items() if word in name), {})
        inputs = tuple(inputs) if "Attention" in name else (inputs,)
        layer(*inputs, **options)
        layer.set_weights([random.normal(size=weight.shape) for weight in layer.weights])
        assert layer.why_not() is None, (name, layer.why_not())
        for i, value in enumerate(differentiated(layer, inputs, **options)):
            found[f"{name}: {i}"] = keras.ops.convert_to_numpy(value)
    logits = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2, 3, 3)), "float32")
    loss = fk.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1, reduction=None)
    assert loss.why_not() is None
    found["SparseCategoricalCrossentropy"] = keras.ops.convert_to_numpy(loss(LABELS, logits))
    loss = fk.SparseCategoricalCrossentropy(from_logits=True, class_weight=[1.0, 2.0, 0.5], z_loss=0.1)
    assert loss.why_not() is None
    found["SparseCategoricalCrossentropy, weighted"] = keras.ops.convert_to_numpy(loss(LABELS, logits))
    np.savez(FOLDER / f"{BACKEND}.npz", **found)


def dropout():
    x = np.ones((64, 8), np.float32)
    for layer in (fk.Dropout(0.5, seed=1), keras.Sequential([fk.Dropout(0.5, seed=1)])):
        first, second = (keras.ops.convert_to_numpy(layer(x, training=True)) for _ in range(2))
        assert set(np.unique(first)) == {0.0, 2.0} and (first != second).any()
    s = keras.ops.convert_to_numpy(fk.DropoutAdd(0.5, seed=1)(x, x, training=True))
    assert set(np.unique(s)) == {1.0, 3.0}


def model():
    layers = keras.layers
    inputs = keras.Input((3, 8))
    x = layers.LayerNormalization()(layers.Dense(8, activation="gelu")(inputs))
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    model = keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.1)(layers.RMSNormalization()(x))))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)
    before = model.predict(x, verbose=0)
    if BACKEND == "jax":
        try:
            fk.convert(model, fuse_loss=True)
        except ValueError as error:
            assert "fusedops.jax.keras.convert: fuse_loss must be False on Keras's JAX backend" in str(error), error
        else:
            raise AssertionError("fuse_loss=True raised no error")
    fk.convert(model, verbose=False)
    kinds = {type(layer).__name__ for layer in model._flatten_layers() if hasattr(layer, "why_not")}
    assert type(model.loss) is fk.SparseCategoricalCrossentropy
    assert kinds >= {"Dense", "EinsumDense", "LayerNormalization", "MultiHeadAttention", "RMSNormalization"}, kinds
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=0, atol=64 * 2.0**-24 * np.abs(before).max())
    losses = model.fit(x, LABELS, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[0] != losses[-1]
    model.save(FOLDER / f"{BACKEND}.keras")
    np.savez(FOLDER / f"{BACKEND}-model.npz", x=x, y=model.predict(x, verbose=0))
    fk.revert(model)
    parts = (model.loss, *model._flatten_layers())
    assert not any(type(part).__module__.startswith("fusedops") for part in parts)


def other_backend():
    for path in FOLDER.glob("*.keras"):
        saved = np.load(FOLDER / f"{path.stem}-model.npz")
        got, scale = keras.saving.load_model(path).predict(saved["x"], verbose=0), np.abs(saved["y"]).max()
        np.testing.assert_allclose(got, saved["y"], rtol=0, atol=64 * 2.0**-24 * scale)


warnings.simplefilter("error", UserWarning)
warnings.filterwarnings("ignore", "Explicitly requested dtype int64", UserWarning)  # Keras's own, of labels
layers()
dropout()
other_backend()
model()
print("right")
