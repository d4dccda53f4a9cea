"""KerasHub's families whose norms, gates and rotations have counterparts: the same results before and after."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate, assert_as_stable, assert_each_close
from tests.helpers.converting import converted
from tests.helpers.keras_models import assert_loads_converted, gradients, policy, roundings, twin, values
from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import environment, interpreter
from tests.keras.test_hub import MODELS, SHARING, recorded

VOCABULARY, LENGTH, HIDDEN = 32, 10, 32
SAMPLES = 4096  # of sound
EPS = float(np.finfo("float32").eps)
COUNTS = {"num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2}
DECODER = {"vocabulary_size": VOCABULARY, "hidden_dim": HIDDEN, "intermediate_dim": 48, **COUNTS}
POST_NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
EXPERTS = {"num_experts": 2, "top_k": 2, "moe_intermediate_dim": 16}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MODERN = {**{key: value for key, value in DECODER.items() if key != "intermediate_dim"}, "head_dim": 16, **LINEAR}
T5_GEMMA = {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {
        "hidden_dim": HIDDEN,
        "intermediate_dim": 48,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }.items()
} | {"vocabulary_size": VOCABULARY, "sliding_window": 8, "initializer_range": 0.2}
SMOL = {
    "vocabulary_size": VOCABULARY,
    "hidden_dim": HIDDEN,
    "intermediate_dim": 48,
    "num_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, False],
    "layer_types": ["full_attention"] * 2,
    "mlp_bias": True,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
}
HEADS = {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_heads": 4, "hidden_dim": HIDDEN, "intermediate_dim": 48}
VIT = {key: value for key, value in HEADS.items() if key != "vocabulary_size"}
MOONSHINE = {
    f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in (("num_layers", 1), ("num_heads", 4))
}
MOONSHINE |= {"vocabulary_size": VOCABULARY, "filter_dim": HIDDEN, "hidden_dim": HIDDEN, "intermediate_dim": 48}
EDREC = {"num_layers_enc": 1, "num_layers_dec": 1, "num_heads": 4, "hidden_dim": HIDDEN, "intermediate_dim": 48}
VISION = {
    "image_size": 16,
    "vit_patch_size": 8,
    "vit_num_heads": 2,
    "vit_hidden_dim": 16,
    "vit_num_layers": 1,
    "vit_intermediate_dim": 16,
}
# Name -> the backbone, and its number of gates.
FAMILIES = {
    "mistral": ("MistralBackbone", {**DECODER, "sliding_window": 4}, 2),
    "qwen3": ("Qwen3Backbone", {**DECODER, "head_dim": 8, "sliding_window_size": 4}, 2),
    "phi3": ("Phi3Backbone", DECODER, 2),
    "gemma3": (
        "Gemma3Backbone",
        {**DECODER, **POST_NORMS, "image_size": 16, "head_dim": 8, "use_sliding_window_attention": True}
        | {"sliding_window_size": 4},
        2,
    ),
    "gemma4": (
        "Gemma4Backbone",
        {**DECODER, "image_size": 16, "head_dim": 8, "sliding_window_size": 4, "sliding_window_pattern": 2}
        | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1, "enable_moe_block": True, "num_experts": 4}
        | {"expert_intermediate_dim": 16, "num_experts_per_token": 2},
        2,
    ),
    "pali_gemma": ("PaliGemmaBackbone", {**DECODER, **POST_NORMS, **VISION, "head_dim": 8}, 2),
    "qwen3_5": ("Qwen3_5Backbone", {**MODERN, "intermediate_dim": 48}, 2),
    "qwen3_5_moe": ("Qwen3_5MoeBackbone", {**MODERN, **EXPERTS, "shared_expert_intermediate_size": 16}, 2),
    "qwen_moe": ("QwenMoeBackbone", {**DECODER, **EXPERTS, "shared_expert_intermediate_dim": 16}, 2),
    "smollm3": ("SmolLM3Backbone", SMOL, 2),
    "t5_gemma": ("T5GemmaBackbone", T5_GEMMA, 4),
    "t5_gemma2": ("T5Gemma2Backbone", T5_GEMMA, 4),
    "t5": ("T5Backbone", {**HEADS, "activation": "gelu", "dropout": 0.0}, 4),
    "edrec": ("EdRecBackbone", {**EDREC, "vocab_size": VOCABULARY}, 2),
    "esm2": ("ESM2Backbone", {**HEADS, "dropout": 0.0, "max_sequence_length": LENGTH}, 0),
    "roformer": ("RoformerV2Backbone", {**HEADS, "head_size": 8, "dropout": 0.0}, 0),
    "dinov3": ("DINOV3Backbone", {**VIT, "patch_size": 8, "image_shape": (16, 16, 3)}, 0),
    "gpt_neo_x": ("GPTNeoXBackbone", HEADS, 0),
    "gpt_oss": ("GptOssBackbone", {**DECODER, "num_experts": 2, "top_k": 2, "sliding_window": 4}, 0),
    "moonshine": ("MoonshineBackbone", MOONSHINE, 0),
    "whisper": ("WhisperBackbone", {**HEADS, "max_encoder_sequence_length": LENGTH}, 0),
}
GATED = [name for name, (*_, gates) in FAMILIES.items() if gates]


@pytest.fixture
def build(keras, fk, request):
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("keras_hub is not installed")
    import keras_hub

    kind, config, _ = FAMILIES[request.param]
    return lambda **options: getattr(keras_hub.models, kind)(**{**config, **options})


def batch(random, model):
    """With padding on the right."""
    inputs = {}
    for name, tensor in model.input.items():
        is_sound = tensor.shape[-1] == 1
        shape = (2, *(size or (SAMPLES if is_sound else LENGTH) for size in tensor.shape[1:]))
        if "padding" in name:
            inputs[name] = np.ones(shape, tensor.dtype)
            inputs[name][1, 7:] = 0
        elif "position" in name:
            inputs[name] = np.tile(np.arange(shape[1]), (2, 1))
        elif "token" in name:
            inputs[name] = random.integers(1, VOCABULARY, shape)
        elif tensor.dtype == "int32":
            inputs[name] = random.integers(0, 2, shape)
        else:
            inputs[name] = random.random(shape).astype(tensor.dtype)
    return inputs


@pytest.fixture
def hub(keras):
    return pytest.importorskip("keras_hub")


def classes(names):
    """KerasHub's classes with these full names."""
    places = (name.rpartition(".") for name in names)
    return [getattr(importlib.import_module(module), name) for module, _, name in places]


def test_every_counterpart_is_tested(keras, fk):
    """Except norms, which have their own test."""
    keras_hub = pytest.importorskip("keras_hub")
    from fusedops.conversion import full_name
    from fusedops.tf.keras.hub import MODULES

    found = set()
    for kind, config, *_ in [*MODELS.values(), *SHARING.values(), *FAMILIES.values()]:
        model = getattr(keras_hub.models, kind)(**config)
        kinds = {layer: type(layer) for layer in model._flatten_layers()}
        converted(fk, model)
        found |= {full_name(kind) for layer, kind in kinds.items() if type(layer) is not kind}
    assert found | {name for name in MODULES if "norm" in name.lower()} >= set(MODULES)


def scattered(random, model):
    """The model with norms whose weights are not ones and zeros."""
    for weight in model.trainable_weights:
        if len(weight.shape) == 1:
            weight.assign_add(random.normal(size=weight.shape) / 8)
    return model


@pytest.mark.parametrize(
    ("build", "name"),
    [
        # test_hub.py also has mixed_float16, in which KerasHub's own masks give NaN in some families.
        pytest.param(family, name, marks=() if name == "float32" else pytest.mark.slow)
        for family in FAMILIES
        for name in ("float32", "mixed_bfloat16")
        if (family, name) != ("moonshine", "mixed_bfloat16")  # KerasHub's own code mixes the dtypes there
    ],
    indirect=["build"],
)
def test_results_are_as_accurate_and_revert_brings_the_bits_back(keras, fk, build, name, random):
    with policy(keras, name):
        model = scattered(random, build())
    exact, inputs = twin(keras, build, model), batch(random, model)
    results = lambda model: numbers(model(inputs)) + gradients(model, inputs)  # noqa: E731
    plain = results(model)
    kinds = [type(layer) for layer in model._flatten_layers()]
    converted(fk, model)
    got = results(model)
    if name == "float32":
        assert_as_stable(got, plain, *truth_of(keras, results, exact, random), name)
        assert_each_close(got, plain, rtol=400 * EPS, terms=2 * LENGTH)  # each relative to its own size
    else:
        assert_as_accurate(got, plain, results(exact), model.compute_dtype)
    counterparts = [type(layer) for layer in model._flatten_layers()]
    fk.convert(model, verbose=False)
    assert [type(layer) for layer in model._flatten_layers()] == counterparts != kinds
    fk.revert(model)
    assert [type(layer) for layer in model._flatten_layers()] == kinds
    for got, expected in zip(numbers(model(inputs)), plain, strict=False):
        assert_same_bits(got, expected)


def truth_of(keras, results, exact, random):
    """The results of the model of float64, and those with roundings of float32."""
    truth = results(exact)
    with roundings(keras, random, "float32"):
        return truth, [results(exact) for _ in range(2)]


@pytest.mark.parametrize(
    ("build", "fault"), [("t5", "eps"), ("t5", "bfloat16"), ("whisper", "bfloat16")], indirect=["build"]
)
def test_a_fault_of_one_layer_exceeds_the_roundings(keras, fk, build, fault, random):
    model = scattered(random, build())
    exact, inputs = twin(keras, build, model), batch(random, model)
    results = lambda model: numbers(model(inputs)) + gradients(model, inputs)  # noqa: E731
    plain = results(model)
    converted(fk, model)
    if fault == "eps":
        norm = [layer for layer in model._flatten_layers() if "norm" in layer.name][-1]
        norm.epsilon *= 10
    else:
        kernel = [weight for weight in model.trainable_weights if "kernel" in weight.path][-1]
        kernel.assign(keras.ops.cast(keras.ops.cast(kernel.value, fault), "float32"))
    with pytest.raises(AssertionError, match="roundings, of the framework's own code"):
        assert_as_stable(results(model), plain, *truth_of(keras, results, exact, random), "float32")


def numbers(outputs):
    """The outputs without masks, which Moonshine returns."""
    return [array for array in values(outputs) if array.dtype != bool]


def test_a_small_gradient_is_compared_to_its_own_size(random):
    expected = [random.normal(size=HIDDEN).astype("float32") * scale for scale in (1, 1, 1e-4)]
    assert_each_close([array * (1 + EPS) for array in expected], expected, rtol=400 * EPS, terms=2 * LENGTH)
    with pytest.raises(AssertionError, match="with a floor"):
        assert_each_close([*expected[:2], expected[2] * 0.9], expected, rtol=400 * EPS, terms=2 * LENGTH)


@pytest.mark.parametrize(("build", "gates"), [(name, FAMILIES[name][2]) for name in GATED], indirect=["build"])
def test_both_products_of_a_gate(fk, build, gates, monkeypatch, random):
    """One operator computes both in every gate on a GPU."""
    from fusedops.tf.keras.hub import gated

    calls, operator = [], gated.fo.gated_linear
    monkeypatch.setattr(gated, "has_gpu", lambda: True)
    monkeypatch.setattr(
        gated.fo, "gated_linear", lambda *args, **more: calls.append(args[5]) or operator(*args, **more)
    )
    model = build()
    inputs = batch(random, model)
    plain = values(model(inputs))
    converted(fk, model)
    for got, expected in zip(values(model(inputs)), plain, strict=True):
        np.testing.assert_allclose(got, expected, atol=200 * EPS * max(1, np.abs(expected).max()))
    assert len(calls) == gates


@pytest.mark.parametrize(
    ("build", "name"),
    [
        *((name, "dropout") for name in ("mistral", "phi3", "qwen3_5", "edrec")),
    ],
    indirect=["build"],
)
def test_dropout_still_applies(keras, fk, build, name, random):
    """The same seeds drop the same elements, in the pass of a sum or by the layer."""
    model = build(**{name: 0.5})
    inputs = batch(random, model)
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.Dropout and layer.rate:  # it drops other elements than Keras's
            converted(fk, layer)
    seeds = [layer.seed_generator.state for layer in model._flatten_layers() if hasattr(layer, "seed_generator")]
    state = [seed.numpy() for seed in seeds]
    still, plain = values(model(inputs, training=False)), values(model(inputs, training=True))
    converted(fk, model)
    for seed, value in zip(seeds, state, strict=True):
        seed.assign(value)
    for got, expected, without in zip(values(model(inputs, training=True)), plain, still, strict=True):
        np.testing.assert_allclose(got, expected, atol=100 * EPS * np.abs(expected).max())
        assert np.abs(got - without).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("build", FAMILIES, indirect=True)
def test_a_converted_backbone_is_saved_and_loaded(keras, fk, build, random, tmp_path):
    model = build()
    assert_loads_converted(keras, fk, model, batch(random, model), tmp_path / "model.keras")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "kind"),
    [
        ("gemma3", "CausalLM"),
        ("gemma4", "CausalLM"),
        ("pali_gemma", "CausalLM"),
        ("qwen3_5", "CausalLM"),
        ("smollm3", "CausalLM"),
        ("t5", "Seq2SeqLM"),
    ],
    indirect=["build"],
)
def test_generation_with_a_cache(fk, build, kind, random):
    import keras_hub

    backbone = build()
    kind = type(backbone).__name__.replace("Backbone", kind)
    model = getattr(keras_hub.models, kind)(backbone=backbone, preprocessor=None)
    prompts = batch(random, backbone)
    written = "decoder_" if "decoder_token_ids" in prompts else ""
    prompts[f"{written}padding_mask"] = padding = np.repeat([[1] * 4 + [0] * 6], 2, 0)
    prompts[f"{written}token_ids"] *= padding
    model.compile(sampler="greedy", jit_compile=False)

    def generated():
        return np.asarray(model.make_generate_function()(prompts, stop_token_ids=None)[f"{written}token_ids"])

    expected = generated()
    converted(fk, model)
    np.testing.assert_array_equal(generated(), expected)
    assert (expected[:, 4:] != prompts[f"{written}token_ids"][:, 4:]).any()


@pytest.mark.parametrize("build", ["smollm3"], indirect=True)
def test_a_rotation_of_others_is_called(fk, build, random):
    from keras_hub.src.models.smollm3.smollm3_layers import SmolLM3RotaryEmbedding

    class CustomRotation(SmolLM3RotaryEmbedding):
        def call(self, x, start_index=0):
            return super().call(x, start_index=start_index)[::-1]

    model = build()
    for layer in model._flatten_layers():
        if type(layer) is SmolLM3RotaryEmbedding:
            layer.__class__ = CustomRotation
    inputs = batch(random, model)
    plain = values(model(inputs))
    converted(fk, model)
    for got, expected in zip(values(model(inputs)), plain, strict=True):
        np.testing.assert_allclose(got, expected, atol=200 * EPS * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("are_converted", [True, False])
def test_the_experts_of_a_gemma4_block(fk, hub, are_converted, monkeypatch, random):
    block, x = gemma4_block(random, enable_moe_block=True, num_experts=4, expert_intermediate_dim=16)
    for weight in block.moe_expert_bank.weights:  # zeros, and scales of one
        weight.assign_add(random.normal(size=weight.shape) / 4)
    expected = values(block(x)[0]) + gradients(block, x)
    converted(fk, block)
    if not are_converted:
        fk.revert(block.moe_expert_bank)
    calls = recorded(monkeypatch, "experts")
    assert_each_close(values(block(x)[0]) + gradients(block, x), expected, rtol=400 * EPS, terms=2 * LENGTH)
    assert [args[1].shape for args, _ in calls] == [(2 * LENGTH, 2)] * (2 * are_converted)


def gemma4_block(random, **options):
    from keras_hub.src.models.gemma4.gemma4_decoder_block import Gemma4TextDecoderBlock

    options = {"num_experts_per_token": 2, "hidden_size_per_layer_input": 8, **options}
    block = Gemma4TextDecoderBlock(HIDDEN, 48, 8, 4, 2, **options)
    block.build((2, LENGTH, HIDDEN))
    return scattered(random, block), random.normal(size=(2, LENGTH, HIDDEN)).astype("float32")


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("converted_first", [False, True])
def test_a_quantized_gemma4_block_is_kept(fk, hub, mode, converted_first, random, capsys):
    """KerasHub's own result ignores the scales."""

    def quantize():
        for dense in (block.gating_ffw, block.gating_ffw_2, block.ffw_linear):
            dense.quantize(mode)

    block, x = gemma4_block(random)
    if converted_first:
        converted(fk, block)
        quantize()
        got = values(block(x)[0])
        fk.revert(block)
    else:
        quantize()
        fk.convert(block)
        assert "kept Gemma4TextDecoderBlock 'gemma4_text_decoder_block" in (report := capsys.readouterr().out)
        assert "it is quantized, and KerasHub's multiplies by the integers without their scales" in report
        got = values(block(x)[0])
        fk.revert(block)
    assert_each_close(got, values(block(x)[0]), rtol=400 * EPS, terms=LENGTH)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("batches", [(2, 2), (2, 1), (1, 2)])
def test_an_input_of_a_gemma4_block_broadcasts(fk, hub, batches, traced, random):
    import tensorflow as tf

    block, x = gemma4_block(random)
    x, given = x[: batches[0]], random.normal(size=(batches[1], LENGTH, 8)).astype("float32")
    expected = values(block(x, per_layer_input=given)[0])
    converted(fk, block)
    call = lambda x, given: block(x, per_layer_input=given)[0]  # noqa: E731
    if traced:
        sizes = [None if array.shape[0] == 2 else 1 for array in (x, given)]
        signature = [tf.TensorSpec((size, *y.shape[1:])) for size, y in zip(sizes, (x, given), strict=True)]
        call = tf.function(call, input_signature=signature)
    assert_each_close(values(call(x, given)), expected, rtol=400 * EPS, terms=LENGTH)


def test_an_input_of_a_gemma4_block_broadcasts_by_a_size_that_only_its_call_knows(fk, hub, random):
    import tensorflow as tf

    block, x = gemma4_block(random)
    given = random.normal(size=(1, LENGTH, 8)).astype("float32")
    expected = values(block(x, per_layer_input=given)[0])
    converted(fk, block)
    signature = [tf.TensorSpec((None, *y.shape[1:])) for y in (x, given)]
    call = tf.function(lambda x, given: block(x, per_layer_input=given)[0], input_signature=signature)
    assert_each_close(values(call(x, given)), expected, rtol=400 * EPS, terms=LENGTH)


@pytest.mark.parametrize("index", ["int32", "int64", "np.int64", "np.array"])
def test_where_a_cache_of_smollm3_is_updated(fk, hub, index, random):
    import tensorflow as tf
    from keras_hub.src.models.smollm3.smollm3_layers import SmolLM3Attention

    index = {
        "int32": tf.constant(3, tf.int32),
        "int64": tf.constant(3, tf.int64),
        "np.int64": np.int64(3),
        "np.array": np.array(3),
    }[index]
    layer = SmolLM3Attention(HIDDEN, 4, 2, False, 0.0, [True], ["full_attention"], 0)
    layer.build(((2, 1, HIDDEN),))
    x, cache = (random.normal(size=shape).astype("float32") for shape in ((2, 1, HIDDEN), (2, 2, 6, 2, 8)))
    options = {"self_attention_cache": cache, "self_attention_cache_update_index": index}
    options["attention_mask"] = np.arange(6)[np.newaxis, np.newaxis] <= np.full((2, 1, 1), 3)
    expected = values(layer(x, **options))
    converted(fk, layer)
    assert type(layer) is not SmolLM3Attention
    assert_each_close(values(layer(x, **options)), expected, rtol=400 * EPS, terms=HIDDEN)


LOAD = """
import json, sys
import keras
import tensorflow as tf
import fusedops.tf.keras

tf.config.experimental.enable_tensor_float_32_execution(False)
names = [name for name in keras.saving.get_custom_objects() if name.startswith("fusedops.hub")]
assert "keras_hub" not in sys.modules
model = keras.models.load_model(sys.argv[1])
kinds = {layer.name: f"{type(layer).__module__}.{type(layer).__name__}" for layer in model.layers}
x = keras.ops.ones((2, *model.input.shape[1:]))
print(json.dumps({"names": names, "kinds": kinds, "y": keras.ops.convert_to_numpy(model(x)).tolist()}))
"""


def test_layers_of_a_functional_model_are_loaded_by_a_process_without_them(keras, fk, hub, tf_backend, tmp_path):
    """The process has imported fusedops.tf.keras only."""
    from keras_hub.src.models.gemma.gemma_decoder_block import GemmaDecoderBlock
    from keras_hub.src.models.gemma3.gemma3_decoder_block import Gemma3DecoderBlock
    from keras_hub.src.models.gemma3.gemma3_layers import RMSNormalization
    from keras_hub.src.models.mistral.mistral_transformer_decoder import MistralTransformerDecoder
    from keras_hub.src.models.mixtral.mixtral_decoder import MixtralSparseMoeBlock
    from keras_hub.src.models.phi3.phi3_decoder import Phi3Decoder
    from keras_hub.src.models.qwen3.qwen3_layernorm import Qwen3LayerNorm
    from keras_hub.src.models.qwen_moe.qwen_moe_decoder import QwenMoeMLP
    from keras_hub.src.models.t5.t5_transformer_layer import T5TransformerLayer
    from keras_hub.src.models.t5gemma.t5gemma_layers import T5GemmaMLP

    from fusedops.tf.keras.hub import MODULES, counterpart

    x = inputs = keras.Input((6, HIDDEN))
    for layer in (
        MistralTransformerDecoder(48, 4, 2),
        GemmaDecoderBlock(HIDDEN, 96, 8, 4, 2),
        Gemma3DecoderBlock(HIDDEN, 48, 8, 4, 2),
        Phi3Decoder(HIDDEN, 48, 4, 2),
        T5TransformerLayer(False, HIDDEN, 8, 48, 0.0, "gelu", 1e-6, 4, use_relative_attention_bias=True),
        hub.layers.TransformerEncoder(48, 4),
        QwenMoeMLP(48, HIDDEN),
        MixtralSparseMoeBlock(HIDDEN, 16, num_experts=4),
        T5GemmaMLP(HIDDEN, 48, "gelu", 0.0),
        RMSNormalization(HIDDEN),
        Qwen3LayerNorm(),
    ):
        x = layer(x)
        x = x[0] if isinstance(x, tuple | list) else x
    model = keras.Model(inputs, x)
    converted(fk, model).save(tmp_path / "model.keras")
    done = interpreter("-c", LOAD, tmp_path / "model.keras", env=environment(tf_backend.device))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    kinds = {layer.name: f"{type(layer).__module__}.{type(layer).__name__}" for layer in model.layers}
    assert sum(kind.startswith("fusedops.tf.keras.hub.") for kind in kinds.values()) == 11
    assert found["kinds"] == kinds
    assert set(found["names"]) == {keras.saving.get_registered_name(counterpart(kind)) for kind in classes(MODULES)}
    assert_each_close([np.array(found["y"], "float32")], values(model(np.ones((2, 6, HIDDEN)))), 400 * EPS, HIDDEN)
