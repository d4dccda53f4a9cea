"""KerasHub's models, converted: as accurate as before, in training and in generation, with all options of layers."""

from __future__ import annotations

import importlib
import importlib.util
import inspect

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate, assert_losses_overlap
from tests.helpers.converting import converted
from tests.helpers.keras_models import assert_loads_converted, gradients, policy, twin, values
from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import environment, interpreter

VOCABULARY, LENGTH, HIDDEN = 32, 12, 32
EPS = float(np.finfo("float32").eps)
GEMMA = {
    "vocabulary_size": VOCABULARY,
    "hidden_dim": HIDDEN,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_dim": 96,
}
GEMMA_2 = {
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
    "attention_logit_soft_cap": 5.0,
    "use_sliding_window_attention": True,
    "sliding_window_size": 4,
    "query_head_dim_normalize": False,
}
LLAMA = {**{key: value for key, value in GEMMA.items() if key != "head_dim"}, "intermediate_dim": 48}
LLAMA_3 = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 8,
}
BERT = {
    "vocabulary_size": VOCABULARY,
    "hidden_dim": HIDDEN,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 48,
    "max_sequence_length": LENGTH,
}
MODELS = {
    "llama": ("LlamaBackbone", LLAMA),
    "llama3": ("Llama3Backbone", {**LLAMA, **LLAMA_3}),
    "gemma": ("GemmaBackbone", GEMMA),
    "gemma2": ("GemmaBackbone", {**GEMMA, **GEMMA_2}),
    "bert": ("BertBackbone", BERT),
}
ONE = {**LLAMA, "num_layers": 1}
EXPERTS = {**ONE, "num_experts": 4, "top_k": 2}
WINDOW = {"sliding_window_size": 4, "use_sliding_window_attention": True}
SHARING = {  # forms of attention and of decoders
    "gpt2": ("GPT2Backbone", {**BERT, "num_layers": 1, "dropout": 0.0}),
    "mistral": ("MistralBackbone", {**ONE, "sliding_window": 4}),
    "qwen": ("QwenBackbone", {**ONE, **WINDOW}),
    "mixtral": ("MixtralBackbone", {**EXPERTS, "sliding_window": 4}),
    "phi3": ("Phi3Backbone", ONE),
    "qwen3": ("Qwen3Backbone", {**ONE, "head_dim": 8, "sliding_window_size": 4}),
    "qwen3_moe": ("Qwen3MoeBackbone", {**EXPERTS, "moe_intermediate_dim": 16, "head_dim": 8}),
    "qwen_moe": ("QwenMoeBackbone", {**EXPERTS, "moe_intermediate_dim": 16, "shared_expert_intermediate_dim": 16}),
}


@pytest.fixture
def keras(keras):
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("keras_hub is not installed")
    return keras


@pytest.fixture
def hub(keras):
    import keras_hub

    return keras_hub


@pytest.fixture(params=MODELS)
def build(request, hub):
    kind, config = MODELS[request.param]
    return lambda **options: getattr(hub.models, kind)(**{**config, **options})


def batch(random, model):
    """With padding on the right and on the left: some rows of attention are fully masked."""
    padding = np.ones((4, LENGTH), "int32")
    padding[1, 7:] = padding[2, :3] = 0
    inputs = {"token_ids": random.integers(0, VOCABULARY, (4, LENGTH)), "padding_mask": padding}
    if "segment_ids" in model.input:
        inputs["segment_ids"] = random.integers(0, 2, (4, LENGTH))
    return inputs


def kinds(model):
    return {type(layer) for layer in model._flatten_layers()}


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_results_are_as_accurate_and_revert_brings_the_bits_back(keras, fk, build, name, random):
    with policy(keras, name):
        model = build()
    exact, inputs = twin(keras, build, model), batch(random, model)
    results = lambda model: values(model(inputs)) + gradients(model, inputs)  # noqa: E731
    plain = results(model)
    converted(fk, model)
    assert_as_accurate(results(model), plain, results(exact), model.compute_dtype)
    fk.revert(model)
    for got, expected in zip(values(model(inputs)), plain, strict=False):  # a GPU's gradients may differ by themselves
        assert_same_bits(got, expected)


def norms():
    """All norms except Gemma's, which is in two of MODELS."""
    from fusedops.tf.keras.hub import MODULES

    return [name for name in MODULES if "norm" in name.rpartition(".")[2].lower() and ".gemma." not in name]


def test_norms_of_every_family(keras, fk, hub, random):
    for name in norms():
        module, _, kind = name.rpartition(".")
        layer = getattr(importlib.import_module(module), kind)(epsilon=1e-3)
        layer.build((2, 6, HIDDEN))
        for weight in layer.weights:
            weight.assign(tensor(random, HIDDEN))
        check_layer(keras, fk, layer, tensor(random, 2, 6, HIDDEN))


def with_head(keras, backbone):
    """A model that predicts a class for each token or each text."""
    if isinstance(backbone.output, dict):
        outputs = keras.layers.Dense(VOCABULARY, dtype="float32")(backbone.output["pooled_output"])
    else:
        outputs = backbone.token_embedding(backbone.output, reverse=True)
    return keras.Model(backbone.input, outputs)


@pytest.mark.parametrize(
    ("build", "name", "jit_compile"),
    [
        *((kind, "float32", False) for kind in ("llama", "gemma", "bert")),
        # XLA has a test for every operator, so a few models suffice here.
        *(pytest.param(kind, "mixed_bfloat16", True, marks=pytest.mark.slow) for kind in ("llama", "bert")),
    ],
    indirect=["build"],
)
def test_fit(keras, fk, build, name, jit_compile, random, capsys):
    from fusedops.tf import xla

    if jit_compile and xla.fault:
        pytest.skip(xla.fault)
    losses = {}
    with policy(keras, name):
        model = with_head(keras, build(num_layers=1, dropout=0.0))
    inputs, weights = batch(random, model), model.get_weights()
    labels = random.integers(0, VOCABULARY, (4, LENGTH) if len(model.output.shape) == 3 else (4,))
    for is_converted in (False, True):
        model.set_weights(weights)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit_compile)
        if is_converted:
            fk.convert(model)
            assert "SparseCategoricalCrossentropy -> " in capsys.readouterr().out
        history = model.fit(inputs, labels, batch_size=2, epochs=3, shuffle=False, verbose=0)
        losses[is_converted] = history.history["loss"]
        assert model.jit_compile is jit_compile
    assert losses[True][-1] < losses[True][0]
    assert_losses_overlap(losses[True], losses[False], model.compute_dtype, steps=6)


def test_dropout_still_applies(fk, build, random, monkeypatch):
    """Keras's dropout draws from the state of its generators. Dropout of attention probabilities inside the kernel
    follows from the same state, but drops others."""
    import fusedops.tf as fo

    rates, attention = [], fo.attention

    def recording(*inputs, **options):
        rates.append(options["dropout"])
        return attention(*inputs, **options)

    monkeypatch.setattr(fo, "attention", recording)
    model = build(dropout=0.5)
    inputs = batch(random, model)
    seeds = [layer.seed_generator.state for layer in model._flatten_layers() if hasattr(layer, "seed_generator")]
    state = [seed.numpy() for seed in seeds]
    still = values(model(inputs, training=False))
    for layer in model._flatten_layers():
        if type(layer).__name__ == "Dropout":  # it alone drops the elements that blocks drop in their sums
            converted(fk, layer)
    plain = values(model(inputs, training=True))
    converted(fk, model)

    def again():
        for seed, value in zip(seeds, state, strict=True):
            seed.assign(value)
        return values(model(inputs, training=True))

    found = again()
    for got, expected, without in zip(found, again() if any(rates) else plain, still, strict=True):
        np.testing.assert_allclose(got, expected, atol=100 * EPS * np.abs(expected).max())
        assert np.abs(got - without).max() > 0.1


@pytest.mark.parametrize(
    ("kind", "jit_compile"),
    [("llama", False), pytest.param("llama", True, marks=pytest.mark.slow), ("gemma", False), ("gemma2", False)],
)
def test_generation_with_a_cache(hub, fk, kind, jit_compile, random):
    from fusedops.tf import xla

    if jit_compile and xla.fault:
        pytest.skip(xla.fault)
    name, config = MODELS[kind]
    backbone = getattr(hub.models, name)(**config)
    model = getattr(hub.models, name.replace("Backbone", "CausalLM"))(backbone=backbone, preprocessor=None)
    padding = np.zeros((2, LENGTH), "int32")
    padding[:, :4] = 1
    prompts = {"token_ids": random.integers(0, VOCABULARY, (2, LENGTH)) * padding, "padding_mask": padding}
    model.compile(sampler="greedy", jit_compile=jit_compile)
    expected = model.generate(prompts, stop_token_ids=None)["token_ids"]
    traced = model.generate_function
    converted(fk, model)
    assert model.generate_function is not traced
    got = model.generate(prompts, stop_token_ids=None)["token_ids"]
    np.testing.assert_array_equal(got, expected)
    assert (np.asarray(got)[:, 4:] != prompts["token_ids"][:, 4:]).any()


@pytest.mark.parametrize(
    "kind", [name if name in ("gpt2", "qwen") else pytest.param(name, marks=pytest.mark.slow) for name in SHARING]
)
def test_families_that_share_a_form(hub, fk, kind, monkeypatch, random):
    """Results, gradients and generated tokens are equal; attention runs in one pass without a mask of all pairs."""
    import fusedops.tf as fo

    name, config = SHARING[kind]
    backbone = getattr(hub.models, name)(**config)
    inputs = batch(random, backbone)
    model = getattr(hub.models, name.replace("Backbone", "CausalLM"))(backbone=backbone, preprocessor=None)
    prompts = {"token_ids": inputs["token_ids"][:2], "padding_mask": np.repeat([[1] * 4 + [0] * 8], 2, 0)}

    def results(caches=True):
        found = values(backbone(inputs)) + gradients(backbone, inputs)
        if not caches:
            return found, tokens_without_a_cache(backbone, prompts, 4)
        model.compile(sampler="greedy", jit_compile=False)
        return found, model.generate(prompts, stop_token_ids=None)["token_ids"]

    plain, tokens = results(caches=kind != "qwen")  # KerasHub's own cannot generate over TensorFlow, with a window
    converted(fk, model)
    calls, attention = [], fo.attention
    monkeypatch.setattr(fo, "attention", lambda *args, **options: calls.append(options) or attention(*args, **options))
    found, generated = results()
    for got, expected in zip(found, plain, strict=True):
        np.testing.assert_allclose(got, expected, atol=200 * EPS * max(1, np.abs(expected).max()))
    np.testing.assert_array_equal(generated, tokens)
    assert all(each["causal"] and (each["mask"] is None or each["mask"].shape[2] == 1) for each in calls)
    assert any(each["lengths"] is not None for each in calls)


def tokens_without_a_cache(backbone, prompts, length):
    tokens = prompts["token_ids"].copy()
    for end in range(length, LENGTH):
        logits = backbone.token_embedding(backbone({"token_ids": tokens, "padding_mask": tokens >= 0}), reverse=True)
        tokens[:, end] = np.argmax(logits[:, end - 1], -1)
    return tokens


GROUPED = {"intermediate_dim": 48, "num_query_heads": 4, "num_key_value_heads": 2}
CHOSEN = {"num_experts": 4, "top_k": 2}
MIXTURES = {
    "mixtral.mixtral_decoder.MixtralTransformerDecoder": {**GROUPED, **CHOSEN, "sliding_window": 3},
    "qwen3_moe.qwen3_moe_decoder.Qwen3MoeTransformerDecoder": GROUPED
    | {**CHOSEN, "moe_intermediate_dim": 16, "norm_top_k_prob": False, "is_sparse_mlp": True, "sliding_window_size": 3},
    "qwen_moe.qwen_moe_decoder.QwenMoeTransformerDecoder": {**GROUPED, **CHOSEN, "moe_intermediate_dim": 16}
    | {"shared_expert_intermediate_dim": 16, "norm_top_k_prob": True, "decoder_sparse_step": 1},
    "gpt_oss.gpt_oss_decoder.GptOssTransformerDecoder": {**GROUPED, **CHOSEN, "sliding_window": 2},
    "qwen3_5_moe.qwen3_5_moe_decoder.Qwen3_5MoeTransformerDecoder": {**CHOSEN, "layer_type": "full_attention"}
    | {"num_query_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    | {"moe_intermediate_dim": 16, "shared_expert_intermediate_size": 16},
}
DECODERS = {
    **MIXTURES,
    "llama.llama_decoder.LlamaTransformerDecoder": GROUPED,
    "mistral.mistral_transformer_decoder.MistralTransformerDecoder": {**GROUPED, "sliding_window": 3},
    "phi3.phi3_decoder.Phi3Decoder": {**GROUPED, "hidden_dim": HIDDEN},
    "qwen3.qwen3_decoder.Qwen3TransformerDecoder": {**GROUPED, "head_dim": 8, "sliding_window_size": 3},
    "gemma.gemma_decoder_block.GemmaDecoderBlock": {**GROUPED, "hidden_dim": HIDDEN, "head_dim": 8}
    | {"use_sliding_window_attention": True, "sliding_window_size": 3},
}


def decoder(name):
    module, _, kind = name.rpartition(".")
    layer = getattr(importlib.import_module(f"keras_hub.src.models.{module}"), kind)(**DECODERS[name])
    layer.build((2, 8, HIDDEN))
    return layer


def recorded(monkeypatch, name):
    """The arguments of all later calls of a function, which is called as before."""
    import fusedops.tf as fo

    calls, function = [], getattr(fo, name)
    monkeypatch.setattr(fo, name, lambda *args, **options: calls.append((args, options)) or function(*args, **options))
    return calls


def assert_close(got, expected):
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=200 * EPS * max(1, np.abs(y).max()))


@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_needs_no_mask(keras, fk, hub, name, monkeypatch, random):
    """A prompt in two parts, and a token: results and caches of KerasHub's code."""
    layer, x = decoder(name), tensor(random, 2, 8, HIDDEN)
    index = next(key for key in inspect.signature(layer.call).parameters if key.endswith("cache_update_index"))
    cache = index.removesuffix("_update_index")

    def results():
        filled, found = keras.ops.zeros((2, 2, 8, 2, 8)), []
        for start, end in ((0, 4), (4, 7), (7, 8)):
            where = keras.ops.convert_to_tensor(start) if start else 0
            y, filled = layer(x[:, start:end], **{cache: filled, index: where})
            found.append(y)
        return values([*found, filled])

    plain = results()
    converted(fk, layer)
    calls = recorded(monkeypatch, "attention")
    assert_close(results(), plain)
    assert [options["mask"] for _, options in calls] == [None] * 3
    places = [(options["query_offset"].numpy(), options["lengths"].numpy()) for _, options in calls]
    np.testing.assert_array_equal(places, [[[0] * 2, [4] * 2], [[4] * 2, [7] * 2], [[7] * 2, [8] * 2]])


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_of_a_mixture(keras, fk, hub, name, monkeypatch, random):
    """Results, the loss that balances experts, and gradients; only the chosen experts are computed."""
    import tensorflow as tf

    layer, x = decoder(name), tensor(random, 2, 8, HIDDEN)
    upstream = tensor(random, 2, 8, HIDDEN)
    padding = np.ones((2, 8), "int32")
    padding[1, 5:] = 0

    def results():
        with tf.GradientTape() as tape:
            y = layer(x, decoder_padding_mask=padding, training=True)
            losses = [100 * loss for loss in layer.losses]  # their coefficients are small
            total = tf.reduce_sum(y * upstream) + sum(losses)
        found = tape.gradient(total, [weight.value for weight in layer.trainable_weights])
        return values([y, *losses, *(gradient for gradient in found if gradient is not None)])

    plain = results()
    converted(fk, layer)
    calls = recorded(monkeypatch, "experts")
    assert_close(results(), plain)
    assert [args[1].shape for args, _ in calls] == [(16, 2)]
    assert len(layer.losses) == ("gpt_oss" not in name)


def test_experts_with_another_activation(keras, fk, hub, monkeypatch, random, capsys):
    """KerasHub's code computes them, in a block that is converted."""
    layer, x = decoder("qwen3_moe.qwen3_moe_decoder.Qwen3MoeTransformerDecoder"), tensor(random, 2, 8, HIDDEN)
    layer.mlp.expert_bank.activation = keras.activations.elu
    plain = values([layer(x, training=True), *layer.losses])
    fk.convert(layer)
    assert "kept Qwen3MoeExperts 'experts': activation elu is not among" in capsys.readouterr().out
    calls = recorded(monkeypatch, "experts")
    assert_close(values([layer(x, training=True), *layer.losses]), plain)
    assert not calls


def check_layer(keras, fk, layer, *arguments, **options):
    """Results before and after differ by a few roundings."""
    plain = values(layer(*arguments, **options))
    converted(fk, layer)
    assert type(layer).__module__.startswith("fusedops.tf.keras.hub.")
    for got, expected in zip(values(layer(*arguments, **options)), plain, strict=True):
        np.testing.assert_allclose(got, expected, atol=32 * EPS * max(1, np.abs(expected).max()))


def tensor(random, *shape):
    return random.normal(size=shape).astype("float32")


@pytest.mark.parametrize("masks", ["none", "padding", "attention", "both", "implicit"])
def test_masks_of_a_llama_decoder(keras, fk, hub, masks, random):
    from keras_hub.src.models.llama.llama_decoder import LlamaTransformerDecoder

    layer = LlamaTransformerDecoder(48, 4, 2, activation="gelu")  # another activation, too
    options, x = {}, keras.ops.convert_to_tensor(tensor(random, 2, 6, HIDDEN))
    layer.build(x.shape)
    padding = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
    if masks in ("padding", "both"):
        options["decoder_padding_mask"] = padding
    if masks in ("attention", "both"):
        options["decoder_attention_mask"] = random.integers(0, 2, (2, 6, 6))
    if masks == "implicit":
        x._keras_mask = keras.ops.convert_to_tensor(padding, "bool")
    check_layer(keras, fk, layer, x, **options)


@pytest.mark.parametrize("activation", ["elu", "silu"])
def test_a_decoder_with_layers_of_others(keras, fk, hub, activation, random):
    """Other layers inside a fusedops layer are called unchanged."""
    from keras_hub.src.models.llama.llama_attention import LlamaAttention
    from keras_hub.src.models.llama.llama_decoder import LlamaTransformerDecoder
    from keras_hub.src.models.llama.llama_layernorm import LlamaLayerNorm

    class Attention(LlamaAttention):
        pass

    class Norm(LlamaLayerNorm):
        def call(self, x):
            return 2 * super().call(x)

    layer = LlamaTransformerDecoder(48, 4, 2, activation=activation)
    layer.build((2, 6, HIDDEN))
    layer._self_attention_layer.__class__ = Attention
    layer._feedforward_layernorm.__class__ = Norm
    check_layer(keras, fk, layer, tensor(random, 2, 6, HIDDEN))


@pytest.mark.parametrize("of", ["llama", "gemma"])
def test_both_products_of_a_gate(keras, fk, hub, of, monkeypatch, random):
    """One operator computes both on a GPU, except if a projection does more than multiply: it is called then."""
    from keras_hub.src.models.gemma.gemma_decoder_block import GemmaDecoderBlock
    from keras_hub.src.models.llama.llama_decoder import LlamaTransformerDecoder

    from fusedops.tf.keras.hub import gated

    if of == "llama":
        layer, names = LlamaTransformerDecoder(48, 4, 2), ("_feedforward_gate_dense", "_feedforward_intermediate_dense")
    else:
        layer, names = GemmaDecoderBlock(HIDDEN, 96, 8, 4, 2), ("gating_ffw", "gating_ffw_2")
    calls, operator = [], gated.fo.gated_linear
    monkeypatch.setattr(gated, "has_gpu", lambda: True)
    monkeypatch.setattr(
        gated.fo, "gated_linear", lambda *args, **more: calls.append(args[5]) or operator(*args, **more)
    )
    layer.build((2, 6, HIDDEN))
    x = tensor(random, 2, 6, HIDDEN)
    check_layer(keras, fk, layer, x)
    assert calls == ["silu" if of == "llama" else "gelu_tanh"]
    for change in ("enable_lora", "quantize"):
        fk.revert(layer)
        getattr(getattr(layer, names[1]), change)(4 if change == "enable_lora" else "int8")
        check_layer(keras, fk, layer, x)
    assert len(calls) == 1


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("return_attention_scores", [False, True])
def test_options_of_an_encoder(keras, fk, hub, normalize_first, return_attention_scores, random):
    layer = hub.layers.TransformerEncoder(48, 4, activation="gelu", normalize_first=normalize_first)
    layer.build((2, 6, HIDDEN))
    options = {
        "padding_mask": np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
        "return_attention_scores": return_attention_scores,
    }
    check_layer(keras, fk, layer, tensor(random, 2, 6, HIDDEN), **options)


@pytest.mark.parametrize(
    ("options", "shape", "call"),
    [
        ({}, (2, 6, 3, 8), {}),
        ({}, (2, 6, 8), {"start_index": 5}),
        ({}, (2, 6, 3, 2, 8), {}),
        ({}, (2, 6, 3, 8), {"positions": np.arange(6) * 2}),
        ({}, (2, 6, 3, 8), {"positions": np.arange(12).reshape(2, 6)}),
        ({"sequence_axis": 2}, (2, 3, 6, 8), {}),
        ({"feature_axis": 1}, (2, 8, 6), {}),
        ({"rope_type": "yarn", "scaling_factor": 2.0}, (2, 6, 3, 8), {}),
        ({"rope_type": "dynamic", "scaling_factor": 2.0}, (1, 6, 3, 8), {}),
    ],
)
def test_rotary_embedding(keras, fk, hub, options, shape, call, random):
    if options.get("feature_axis") == 1:
        options = {**options, "sequence_axis": 2}
    check_layer(keras, fk, hub.layers.RotaryEmbedding(**options), tensor(random, *shape), **call)


def test_unbuilt_layers_and_other_versions_are_skipped(fk, hub, monkeypatch, capsys):
    from fusedops.tf.keras.hub import transformer

    layer = hub.layers.TransformerEncoder(48, 4, name="encoder")
    fk.convert(layer)
    assert "kept TransformerEncoder 'encoder': not built yet: call the model once" in capsys.readouterr().out
    layer.build((2, 6, HIDDEN))
    for attribute, value, reason in (
        ("needs", ("_something_else",), "has no attribute _something_else"),
        ("arguments", 6, "takes other arguments"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(transformer.TransformerEncoder, attribute, value)
            fk.convert(layer)
        assert type(layer) is hub.layers.TransformerEncoder
        sentence = f"kept TransformerEncoder 'encoder': this version of KerasHub's {reason}"
        assert sentence in capsys.readouterr().out


OTHER_VERSION = """
import sys
import keras, keras_hub
from keras_hub.src.models.gemma import gemma_decoder_block
from keras_hub.src.models.qwen import qwen_layernorm
from keras_hub.src.utils import keras_utils
import fusedops.tf.keras as fk

sys.modules["keras_hub.src.models.qwen3.qwen3_layernorm"] = None
del qwen_layernorm.QwenLayerNorm, keras_utils.gelu_approximate
fk.convert(keras.Sequential([keras.layers.Softmax()]))
fk.convert(keras_hub.models.LlamaBackbone(**LLAMA))
block = gemma_decoder_block.GemmaDecoderBlock(32, 32, 8, 2, 1)
block.build((2, 6, 32))
del gemma_decoder_block.GemmaDecoderBlock
fk.revert(fk.convert(block))
"""


@pytest.mark.slow
def test_another_version_of_keras_hub(tf_backend, hub):
    """Layers with a renamed attribute are skipped, the others converted."""
    code = OTHER_VERSION.replace("LLAMA", repr(LLAMA))
    done = interpreter("-c", code, env=environment(tf_backend.device))
    assert done.returncode == 0, done.stderr
    for sentence in (
        "1 Softmax -> fusedops.keras_layers.softmax.Softmax",
        "this version of KerasHub has other activation functions: cannot import name 'gelu_approximate'",
        "-> fusedops.tf.keras.hub.norms.LlamaLayerNorm",
        "kept GemmaDecoderBlock 'gemma_decoder_block': this version of KerasHub is not known: module ",
    ):
        assert sentence in done.stdout


def test_a_converted_backbone_is_saved_and_loaded(keras, fk, build, random, tmp_path):
    model = build()
    assert_loads_converted(keras, fk, model, batch(random, model), tmp_path / "model.keras")


def test_a_model_with_a_converted_encoder_is_saved_and_loaded(keras, fk, hub, random, tmp_path):
    inputs = keras.Input((6, HIDDEN))
    model = keras.Model(inputs, hub.layers.TransformerEncoder(48, 4)(inputs))
    converted(fk, model).save(tmp_path / "model.keras")
    loaded, x = keras.models.load_model(tmp_path / "model.keras"), tensor(random, 2, 6, HIDDEN)
    assert "fusedops.tf.keras.hub.transformer" in {kind.__module__ for kind in kinds(loaded)}
    np.testing.assert_allclose(loaded(x), model(x), atol=32 * EPS)
