"""fusedops.torch.convert of the attention in transformers' models: masks, generation, skipped modules, revert."""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES, Family

LENGTH, WINDOW = 13, 5


@pytest.fixture
def build(torch_backend, transformers):
    def built(name="llama", **options):
        family = FAMILIES.get(name) or Family(name)
        return family.build(device=torch_backend.device, **options)

    return built


def tokens(torch, device, side=None):
    """Tokens, and the mask of those that are not padding."""
    ids = torch.arange(3 * LENGTH, device=device).reshape(3, LENGTH) * 7 % 90 + 3
    mask = torch.ones_like(ids)
    if side == "left":
        mask[0, :4] = mask[2, :1] = 0
    elif side == "right":
        mask[1, 9:] = 0
    elif side == "middle":
        mask[1, 3:5] = 0
    return {"input_ids": ids, "attention_mask": mask}


def padding(torch, side, length):
    return tokens(torch, "cpu", side)["attention_mask"][:, :length].bool() if side else None


# Sizes of a layer's cache: queries, keys, position of the first query, of the first key.
SIZES = {
    "no cache": (13, 13, 0, 0),
    "one more": (1, 13, 12, 0),
    "some more": (4, 13, 9, 0),
    "the last of a window": (1, 5, 12, 8),
    "some after a window": (3, 7, 10, 6),
    "an empty static cache": (9, 16, 0, 0),
    "a static cache": (3, 16, 9, 0),
}


@pytest.mark.parametrize("side", [None, "left", "right", "middle"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["causal", "window", "both ways"])
def test_masks_equal_those_of_transformers(torch_cpu, transformers, kind, size, side):
    from transformers import masking_utils

    from fusedops.torch.conversion.hf import masks

    torch = torch_cpu.torch
    queries, keys, first_query, first_key = SIZES[size]
    window = WINDOW if kind == "window" else None
    function = {
        "causal": masking_utils.causal_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(WINDOW),
        "both ways": masking_utils.bidirectional_mask_function,
    }[kind]
    given = {
        "batch_size": 3,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": first_query,
        "kv_offset": first_key,
        "mask_function": function,
        "attention_mask": padding(torch, side, first_query + queries),
        "local_size": window,
        "config": SimpleNamespace(sliding_window=window),
    }
    may_be_short = {"allow_is_causal_skip": kind != "both ways", "allow_is_bidirectional_skip": kind == "both ways"}
    expected = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)
    for offset in (first_query, torch.tensor(first_query)):
        got = masks.mask(**{**given, "q_offset": offset}, **may_be_short)
        kept = masks.visible(got, queries, keys, kind != "both ways", window)
        full = kept.full(queries, keys, "cpu")
        full = torch.ones(1, 1, 1, 1, dtype=torch.bool) if full is None else full
        assert full.expand(3, 1, queries, keys).equal(expected.expand(3, 1, queries, keys))
        # Only keys that are cut off at the front need a mask row for each query.
        assert got is None or got.numel() <= 3 * keys or first_key


@pytest.mark.parametrize("shape", [(3, 1, 1, LENGTH), (3, 1, LENGTH, LENGTH), (3, LENGTH)])
@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_masks_of_integers_are_those_of_users(torch_cpu, transformers, shape, dtype):
    """They are none of ours: transformers' own attention computes the call, or refuses it."""
    from fusedops.torch.conversion.hf import attention

    torch = torch_cpu.torch
    module = SimpleNamespace(is_causal=False, training=False, num_key_value_groups=1)
    q, k, v = (torch.randn(3, 2, LENGTH, 8, dtype=torch.float64) for _ in range(3))
    mask = (torch.arange(LENGTH).expand(shape) < 9).to(getattr(torch, dtype))

    def result(name):
        try:
            return attention.ALL_ATTENTION_FUNCTIONS[name](module, q, k, v, mask, scaling=0.3)[0]
        except RuntimeError as error:
            return str(error)

    got, expected = result("fusedops"), result("sdpa")
    if isinstance(expected, str):
        assert got == expected
    else:
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_an_attention_that_is_causal_without_a_mask(torch, fo, build, cache, side):
    """Moonshine's attention passes is_causal=False beside any mask."""
    from transformers import EncoderDecoderCache, StaticCache

    model = build("moonshine").double()
    ids, mask = tokens(torch, model.device, side).values()
    sound = torch.randn(3, 4000, dtype=torch.float64, device=model.device)

    def results():
        found, past = [], None
        if cache == "static":
            past = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=2 * LENGTH) for _ in range(2)))
        for start, end in ((0, 4), (4, LENGTH)) if cache else ((0, LENGTH),):
            options = {"decoder_attention_mask": mask[:, :end]} if side else {}
            options |= {"past_key_values": past, "use_cache": bool(cache)}
            output = model(sound, decoder_input_ids=ids[:, start:end], **options)
            found.append(output.logits.detach())
            past = output.past_key_values
        return torch.cat(found, 1)[mask.bool()]

    expected = results()
    converted(fo, model)
    torch.testing.assert_close(results(), expected, rtol=1e-9, atol=1e-9)


def test_a_config_that_raises_on_access(torch_cpu, transformers):
    """A config whose layers differ raises on access, like NeoMME's, which has windows; the mask of a window is
    complete."""
    from fusedops.torch.conversion.hf import implementation, masks

    class Config:
        @property
        def sliding_window(self):
            raise RuntimeError("layers differ")

    assert implementation._has_window(Config())
    got = masks.mask(1, LENGTH, LENGTH, local_size=WINDOW, config=Config())
    assert got.shape == (1, 1, LENGTH, LENGTH)


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("whole", [True, False])
def test_packed_sequences_have_a_mask(torch, fo, build, name, whole):
    """Also when compiled, and if only the attention is converted."""
    model, positions = build(name), torch.arange(LENGTH).remainder(6)[None]
    inputs = {"input_ids": tokens(torch, model.device)["input_ids"][:1], "position_ids": positions.to(model.device)}
    plain = model(**inputs, use_cache=False).logits
    assert not plain.allclose(model(inputs["input_ids"], use_cache=False).logits, rtol=1e-2)
    converted(fo, model)
    if not whole:
        model.model.__class__ = type(model.model).original
    torch.compiler.reset()  # compilations of other cases count against the limit, too
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for run in (model, compiled):
        torch.testing.assert_close(run(**inputs, use_cache=False).logits, plain, rtol=1e-4, atol=1e-5)
    by_position = model.model(inputs["input_ids"], None, inputs["position_ids"], use_cache=False)[0]
    torch.testing.assert_close(model.lm_head(by_position), plain, rtol=1e-4, atol=1e-5)


@pytest.fixture
def varlen(monkeypatch, fo):
    """Records the offsets of every call of attention_varlen."""
    found, function = [], fo.attention_varlen

    def recording(q, k, v, offsets_q, offsets_k, **options):
        found.append(offsets_q)
        return function(q, k, v, offsets_q, offsets_k, **options)

    monkeypatch.setattr(fo, "attention_varlen", recording)
    return found


@pytest.mark.parametrize(
    ("name", "whole", "described_by"),
    [
        ("llama", True, "positions"),
        ("llama", True, "offsets"),
        ("llama", False, "both"),
        ("mistral", True, "both"),
        ("stablelm", True, "both"),  # its layers drop the offsets
        ("stablelm", True, "offsets"),
        pytest.param("gemma3", True, "both", marks=pytest.mark.slow),
    ],
)
def test_packed_sequences(torch, fo, build, varlen, name, whole, described_by):
    """A batch of transformers' collator gives each sequence the logits and the model the gradients of each alone."""
    from transformers import DataCollatorWithFlattening

    from audits.families.equality import LIMIT, difference
    from tests.helpers.torch_models import arrays

    model = build(name, **({"sliding_window": WINDOW} if name in ("mistral", "gemma3") else {}))
    ids = tokens(torch, "cpu")["input_ids"]
    sequences = [ids[0, :2], ids[1], ids[2, :9]]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=described_by != "positions")(
        [{"input_ids": x.tolist()} for x in sequences]
    )
    batch = {
        name: x.to(model.device) if isinstance(x, torch.Tensor) else x for name, x in batch.items() if name != "labels"
    }
    if described_by == "offsets":
        del batch["position_ids"]  # rotary positions do not restart then, which changes rounding alone

    def results(logits):
        weights = torch.linspace(-1, 1, logits.numel(), device=logits.device).view_as(logits)
        return arrays([logits, *torch.autograd.grad((logits * weights).sum(), list(model.parameters()))])

    plain = results(torch.cat([model(x[None].to(model.device), use_cache=False).logits for x in sequences], 1))
    converted(fo, model)
    if not whole:
        model.model.__class__ = type(model.model).original
    torch.compiler.reset()  # compilations of other cases count against the limit, too
    runs = [model] if described_by == "positions" else [model, torch.compile(model, backend="eager", fullgraph=True)]
    for run in runs:
        varlen.clear()
        assert difference(results(run(**batch, use_cache=False).logits), plain) <= LIMIT
        has_mask = not whole or name == "stablelm"  # compiled, transformers makes one of positions
        assert len(varlen) == 2 or (run is not model and has_mask)
    assert [x.tolist() for x in varlen] == [[0, 2, 15, 24]] * len(varlen)


PACKED = [0, 4, LENGTH]


@pytest.mark.parametrize(
    ("name", "described_by"), [*itertools.product(("gpt_oss", "granite_swa"), ("positions", "offsets"))]
)
def test_packed_sequences_with_sinks(torch, fo, build, varlen, name, described_by):
    """The logits are those of each sequence alone, and so are the gradients of the sinks, with a window and without."""
    from audits.families.equality import LIMIT, difference
    from audits.families.hugging_face import families
    from tests.helpers.torch_models import arrays

    if name not in families():
        pytest.skip(f"this version of transformers has no {name}")
    model = build(name, sliding_window=WINDOW)
    sinks = [weight for key, weight in model.named_parameters() if "sink" in key]
    for weight in sinks:
        torch.nn.init.normal_(weight)
    ids = tokens(torch, model.device)["input_ids"][:1]
    offsets = torch.tensor(PACKED, dtype=torch.int32, device=ids.device)
    parts = [*itertools.starmap(slice, itertools.pairwise(PACKED))]
    positions = torch.cat([torch.arange(x.stop - x.start, device=ids.device) for x in parts])[None]
    inputs = {"position_ids": positions}
    if described_by == "offsets":
        inputs |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}

    def results(logits):
        return arrays([logits, *torch.autograd.grad(logits.square().sum(), sinks)])

    plain = results(torch.cat([model(ids[:, part], use_cache=False).logits for part in parts], 1))
    converted(fo, model)
    assert difference(results(model(ids, **inputs, use_cache=False).logits), plain) <= LIMIT
    assert [x.tolist() for x in varlen] == [PACKED] * 2 and sinks


def test_positions_that_a_model_only_passes_on(torch, fo, build, varlen):
    """gpt-oss makes its masks without them: converted, it finds packed sequences in them, in every row of a batch."""
    model = converted(fo, build("gpt_oss", sliding_window=WINDOW))
    ids = tokens(torch, model.device)["input_ids"][:2]
    positions = torch.tensor([*range(4), *range(LENGTH - 4)], device=ids.device)[None]
    parts = [*itertools.starmap(slice, itertools.pairwise(PACKED))]
    expected = torch.cat([model(ids[:, part], use_cache=False).logits for part in parts], 1)
    assert not varlen
    for given in (positions, positions.expand(2, -1)):
        got = model(ids, position_ids=given, use_cache=False).logits
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert [x.tolist() for x in varlen] == [[0, 4, LENGTH, LENGTH + 4, 2 * LENGTH]] * 4
    varlen.clear()
    embedded = {"inputs_embeds": model.get_input_embeddings()(ids), "position_ids": positions}
    torch.testing.assert_close(model(**embedded, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)
    assert len(varlen) == 2
    whole = model(ids, use_cache=False).logits
    for rising in (None, torch.arange(LENGTH, device=ids.device)[None]):
        assert model(ids, position_ids=rising, use_cache=False).logits.equal(whole)
    masked = model(ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False).logits
    assert not masked.allclose(expected, rtol=1e-2) and len(varlen) == 2
    fo.revert(model)
    assert not model(ids, position_ids=positions, use_cache=False).logits.allclose(expected, rtol=1e-2)


@pytest.mark.parametrize(
    ("model", "passes"),
    {"gpt_oss.GptOssModel": True, "llama.LlamaModel": False, "gemma3.Gemma3TextModel": False}.items(),
)
def test_models_that_only_pass_positions_on(torch_cpu, transformers, model, passes):
    import inspect

    from fusedops.torch.conversion.hf import positions

    family, _, name = model.partition(".")
    kind = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)
    assert positions._only_passes_on(inspect.unwrap(kind.forward)) is passes


@pytest.mark.parametrize(
    ("model", "hands_on"),
    {
        "llama.LlamaModel": True,
        "mistral.MistralModel": True,  # calls the function of its masks by a variable
        "gpt2.GPT2Model": True,  # the attention to an encoder gets no offsets
        "stablelm.StableLmModel": False,
        "nemotron.NemotronModel": False,
    }.items(),
)
def test_models_whose_layers_drop_offsets(torch_cpu, transformers, model, hands_on):
    from fusedops.torch.conversion.hf import positions

    family, _, name = model.partition(".")
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    assert positions._hands_offsets_on(getattr(module, name)) is hands_on


@pytest.mark.parametrize("name", ["fusedops", "fusedops_full_masks"])
@pytest.mark.parametrize("described_by", ["mask", "offsets"])
@pytest.mark.parametrize("option", ["s_aux", "position_bias", "softcap", "sliding_window"])
def test_options_of_packed_sequences(torch, transformers, fo, name, described_by, option):
    """Each sequence has the attention of itself alone, with every option that transformers' modules pass."""
    from fusedops.torch.conversion.hf import attention

    module = SimpleNamespace(is_causal=True, training=False, num_key_value_groups=1)
    q, k, v = (torch.randn(1, 4, LENGTH, 8, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(1, 4, LENGTH, LENGTH, dtype=torch.float64)
    value = {"s_aux": torch.randn(4).double(), "position_bias": bias, "softcap": 0.5, "sliding_window": 3}[option]
    offsets = torch.tensor(PACKED, dtype=torch.int32)
    given = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    mask, more = (offsets, {}) if described_by == "mask" else (None, given)
    attend = attention.ALL_ATTENTION_FUNCTIONS["fusedops_eager" if option == "softcap" else name]  # sdpa has no cap
    y, _ = attend(module, q, k, v, mask, scaling=0.3, **{option: value}, **more)
    for part in itertools.starmap(slice, itertools.pairwise(PACKED)):
        own = value[..., part, part] if option == "position_bias" else value
        own_name = {"s_aux": "sinks", "position_bias": "bias", "sliding_window": "window"}.get(option, option)
        heads = (x[:, :, part].transpose(1, 2) for x in (q, k, v))
        expected = fo.attention(*heads, causal=True, scale=0.3, **{own_name: own})
        torch.testing.assert_close(y[:, part], expected, rtol=1e-12, atol=1e-12)


def test_packed_queries_of_other_keys(torch, transformers):
    """The mask of packed sequences whose queries stand at the end of more keys."""
    from fusedops.torch.conversion.hf import masks

    offsets = [torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 3], [0, 3, 7])]
    mask = masks.of_packed(*offsets, 1, 3, 7, True, 2)
    rows = [[1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1]]
    assert mask[0, 0].int().tolist() == rows


def test_an_attention_with_an_unknown_argument(torch_cpu, fo, build, capsys, monkeypatch):
    """It is not converted, since the argument would be dropped."""
    model = build(attn_implementation="eager")
    module = importlib.import_module(type(model).__module__)
    original = module.eager_attention_forward

    def gated(module, query, key, value, attention_mask, gate=None, **options):
        return original(module, query, key, value, attention_mask, **options)

    monkeypatch.setattr(module, "eager_attention_forward", gated)
    fo.convert(model)
    reason = "its own function has an argument that is not known: gate"
    assert f"  kept the attention of 2 LlamaAttention, eager: {reason}\n" in capsys.readouterr().out
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("described_by", ["positions", "offsets", "both"])
@pytest.mark.parametrize("compiles", [False, True])
def test_packed_sequences_in_full_masks(torch, fo, build, compiles, described_by):
    """Llama 4 keeps transformers' masks, of chunks that begin with a sequence: offsets alone find their places, too."""
    model = build("llama4_text", attention_chunk_size=WINDOW)
    ids = tokens(torch, model.device)["input_ids"][:1]
    parts = [*itertools.starmap(slice, itertools.pairwise(PACKED))]
    plain = torch.cat([model(ids[:, part], use_cache=False).logits for part in parts], 1)
    offsets = torch.tensor(PACKED, dtype=torch.int32, device=ids.device)
    positions = {"position_ids": torch.tensor([*range(4), *range(LENGTH - 4)], device=ids.device)[None]}
    inputs = {} if described_by == "offsets" else positions
    if described_by != "positions":
        inputs |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    converted(fo, model)
    assert model.config._attn_implementation == "fusedops_full_masks"
    torch.compiler.reset()  # compilations of other cases count against the limit, too
    run = torch.compile(model, backend="eager", fullgraph=True) if compiles else model
    torch.testing.assert_close(run(ids, **inputs, use_cache=False).logits, plain, rtol=1e-4, atol=1e-5)
    if described_by == "offsets":
        by_place = model.lm_head(model.model(ids, None, None, None, None, use_cache=False, **inputs)[0])
        torch.testing.assert_close(by_place, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bool", "float64"])
def test_offsets_beside_a_full_mask(torch, transformers, fo, dtype):
    """Both hold: a mask that knows no sequences, such as that of an image's blocks, does not join them."""
    from fusedops.torch.conversion.hf import attention

    module = SimpleNamespace(is_causal=True, training=False, num_key_value_groups=1)
    q, k, v = (torch.randn(1, 4, LENGTH, 8, dtype=torch.float64) for _ in range(3))
    offsets = torch.tensor(PACKED, dtype=torch.int32)
    visible = (torch.rand(1, 1, LENGTH, LENGTH) < 0.5) | torch.eye(LENGTH, dtype=torch.bool)
    mask = visible
    if dtype != "bool":
        mask = q.new_zeros(visible.shape).masked_fill(~visible, -1e300)
    attend = attention.ALL_ATTENTION_FUNCTIONS["fusedops"]
    y, _ = attend(module, q, k, v, mask, scaling=0.3, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets)
    for part in itertools.starmap(slice, itertools.pairwise(PACKED)):
        heads = (x[:, :, part].transpose(1, 2) for x in (q, k, v))
        expected = fo.attention(*heads, scale=0.3, mask=visible[..., part, part])
        torch.testing.assert_close(y[:, part], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("described_by", ["position_ids", "cu_seq_lens"])
def test_packed_sequences_with_dropout(torch, fo, build, varlen, described_by):
    """attention_varlen has no dropout: attention gets a mask, and the second sequence does not see the first."""
    model = converted(fo, build(attention_dropout=0.5)).train()
    ids = tokens(torch, model.device)["input_ids"][:1]
    inputs = {"position_ids": torch.arange(LENGTH, device=ids.device).remainder(6)[None]}
    if described_by == "cu_seq_lens":
        offsets = torch.tensor([0, 6, 12, 13], dtype=torch.int32, device=ids.device)
        inputs |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    found = []
    for first in (5, 6):
        torch.manual_seed(0)
        ids[0, 0] = first
        found.append(model(ids, **inputs, use_cache=False).logits)
    assert not found[0][:, :6].equal(found[1][:, :6]) and found[0][:, 6:].equal(found[1][:, 6:])
    assert not varlen


def test_packed_sequences_are_detected_only_with_positions(torch, fo, build, monkeypatch):
    from transformers import masking_utils

    looks, look = [], masking_utils.find_packed_sequence_indices

    def counted(positions):
        looks.append(positions)
        return look(positions)

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", counted)
    model, ids = build(), tokens(torch, "cpu")["input_ids"]
    ids = ids.to(model.device)
    plain = model(ids, use_cache=False, output_hidden_states=True)
    assert len(looks) == 1
    converted(fo, model)
    got = model(ids, use_cache=False, output_hidden_states=True)
    assert len(looks) == 1
    for x, y in zip((got.logits, *got.hidden_states), (plain.logits, *plain.hidden_states), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    model(ids, use_cache=False, position_ids=torch.arange(LENGTH, device=ids.device)[None])
    assert len(looks) == 2
    fo.revert(model)(ids, use_cache=False)
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("model", "counts"),
    {
        "llama.LlamaModel": True,
        "gemma3.Gemma3TextModel": True,
        "qwen2_vl.Qwen2VLTextModel": True,
        "opt.OPTDecoder": False,  # computed from the mask
        "paligemma.PaliGemmaModel": False,  # positions start at 1
        "csm.CsmDepthDecoderModel": False,  # positions are None at the end
        "bart.BartDecoder": False,  # no such argument
        "bert.BertModel": False,  # and no masks of its own
    }.items(),
)
def test_models_that_compute_their_own_positions(torch_cpu, transformers, model, counts):
    from fusedops.torch.conversion.hf import positions

    family, _, name = model.partition(".")
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    assert positions.makes_own(getattr(module, name)) is counts


@pytest.mark.parametrize("name", ["llama", "mistral", pytest.param("gemma2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_same_tokens_are_generated(torch, fo, build, name, cache):
    model = build(name, **({} if name == "llama" else {"sliding_window": WINDOW}))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"cache_implementation": cache, "disable_compile": True}
    inputs = [tokens(torch, model.device, side) for side in (None, "left")]
    beams = (1, 3) if cache == "dynamic" else (1,)

    def generated():
        return [model.generate(**x, **options, num_beams=n) for x, n in itertools.product(inputs, beams)]

    plain = generated()
    converted(fo, model)
    assert model.config._attn_implementation == "fusedops" + ("_eager" if name == "gemma2" else "")
    for got, expected in zip(generated(), plain, strict=True):
        assert got.equal(expected)


@pytest.mark.parametrize("name", ["bert", "llama", pytest.param("mistral", marks=pytest.mark.slow)])
def test_compiled_code_has_no_tensor_of_all_pairs(torch, fo, build, name):
    """Compiled without a graph break and without a tensor of all queries and keys, with padding and without a mask."""
    is_bert = name == "bert"
    model = build(
        name, **({"sliding_window": WINDOW} if name == "mistral" else {"is_decoder": False} if is_bert else {})
    )
    sizes = []
    torch.compiler.reset()  # compilations of other cases count against the limit, too

    def looked_at(graph, inputs):
        for node in graph.graph.nodes:
            value = node.meta.get("example_value")
            sizes.extend(tuple(x.shape) for x in (value,) if isinstance(x, torch.Tensor))
        return graph

    for side, options in ((None, {}), (None, {} if is_bert else {"use_cache": False}), ("left", {})):
        inputs = tokens(torch, model.device, side) if side else {"input_ids": tokens(torch, model.device)["input_ids"]}
        inputs |= options
        kept = tokens(torch, model.device, side)["attention_mask"][..., None]
        fo.revert(model)
        plain = model(**inputs).logits * kept
        converted(fo, model)
        got = torch.compile(model, backend=looked_at, fullgraph=True)(**inputs).logits * kept
        torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-5)
    assert sizes
    assert not [size for size in sizes if size[-2:] == (LENGTH, LENGTH)]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_weights_come_from_transformers(torch, fo, build, implementation):
    model = build(attn_implementation=implementation, attention_dropout=0.5).eval()
    inputs = tokens(torch, model.device, "left")
    kept = inputs["attention_mask"][..., None]

    def results():
        found = [model(**inputs).logits * kept]
        if implementation == "eager":
            found += [x * kept[:, None] for x in model(**inputs, output_attentions=True).attentions]
        return found

    plain = results()
    converted(fo, model)
    assert model.config._attn_implementation == ("fusedops" if implementation == "sdpa" else "fusedops_eager")
    for got, expected in zip(results(), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_dropout_in_training(torch, fo, build, implementation, monkeypatch):
    """The kernel drops at the config's rate: another mask at each call, and the same one after the same seed."""
    model = build(attn_implementation=implementation, attention_dropout=0.5)
    inputs = tokens(torch, model.device, "left")
    converted(fo, model)
    rates, attention = [], fo.attention

    def recording(*inputs, **options):
        rates.append(options["dropout"])
        return attention(*inputs, **options)

    monkeypatch.setattr(fo, "attention", recording)

    def logits():
        return model.train()(**inputs).logits[:, -1]

    torch.manual_seed(0)
    first, second = logits(), logits()
    assert set(rates) == {0.5}
    torch.manual_seed(0)
    assert not first.equal(second) and first.equal(logits())
    whole = model.eval()(**inputs).logits[:, -1]
    assert set(rates) == {0.5, 0.0} and whole.equal(model(**inputs).logits[:, -1])


SKIPPED = {
    "2 LlamaAttention, eager: its config asks for the weights of the attention": (
        "llama",
        {"attn_implementation": "eager", "output_attentions": True},
    ),
    "2 LlamaAttention, flex_attention: it is flex_attention, which was chosen by user code": (
        "llama",
        {"attn_implementation": "flex_attention"},
    ),
    "2 LlamaAttention, sdpa: its heads have 584 features; the kernel takes up to 576": ("llama", {"head_dim": 584}),
    "2 Gemma4TextAttention, sdpa: the code of Gemma4TextModel asks for its name": ("gemma4_text", {}),
}


@pytest.mark.parametrize("sentence", SKIPPED)
def test_skipped_models_and_reasons(torch_cpu, fo, build, capsys, sentence):
    name, options = SKIPPED[sentence]
    if name == "gemma4_text":
        pytest.importorskip("transformers", minversion="5.22")  # older code does not consult the function
    model = build(name, **options)
    before = model.config._attn_implementation
    fo.convert(model)
    assert f"  kept the attention of {sentence}\n" in capsys.readouterr().out + "\n"
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("side", [None, "left"])
def test_sinks(torch, build, side):
    """The logits of transformers' own attention, and the gradients of sinks, in layers with and without a window."""
    from fusedops.torch.conversion.hf import implementation

    model = build("gpt_oss").double()
    model.set_experts_implementation("eager")  # the default has no float64
    inputs = tokens(torch, model.device, side)
    sinks = [weight for name, weight in model.named_parameters() if name.endswith("sinks")]
    for weight in sinks:
        torch.nn.init.normal_(weight)

    def results():
        logits = model(**inputs).logits[inputs["attention_mask"].bool()]
        return logits, *torch.autograd.grad(logits.square().sum(), sinks)

    plain = results()
    implementation.convert([*model.modules()])  # the attention alone: transformers' norms round to float32
    assert model.config._attn_implementation == "fusedops_eager" and sinks
    for got, expected in zip(results(), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "implementation"), [("t5", "sdpa"), ("t5", "eager"), ("llama4_text", "sdpa")])
def test_models_with_full_masks(torch, build, name, implementation):
    """The logits and gradients of transformers' own attention: those of its bias, too."""
    from fusedops.torch.conversion.hf import implementation as attentions

    model = build(name, attn_implementation=implementation).double()
    inputs = tokens(torch, model.device, "right")
    inputs |= {"decoder_input_ids": inputs["input_ids"]} if name == "t5" else {}
    weights = [
        weight
        for key, weight in model.named_parameters()
        if "bias" in key or key.endswith(("q.weight", "q_proj.weight"))
    ]

    def results():
        logits = model(**inputs).logits[inputs["attention_mask"].bool()]
        return logits, *torch.autograd.grad(logits.square().sum(), weights)

    plain = results()
    attentions.convert([*model.modules()])
    assert model.config._attn_implementation.endswith("_full_masks") and weights
    for got, expected in zip(results(), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("low", [-5e4, 0.0])
def test_a_low_bias_is_no_mask(torch, fo, build, low):
    """MPT's bias is 0 at the last key: behind 65 536 positions, that of the first query's only key is below -4e4."""
    attention = build("mpt").transformer.blocks[0].attn
    x = torch.randn(2, 5, attention.hidden_size)
    bias = torch.randn(attention.n_heads, 1, 5) + low
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    inputs = [each.to(attention.Wqkv.weight.device) for each in (x, bias, mask)]
    expected = attention(inputs[0], inputs[1], attention_mask=inputs[2])[0]
    converted(fo, attention)
    got = attention(inputs[0], inputs[1], attention_mask=inputs[2])[0]
    # Both round scores of this size to multiples of 2 ** -8 before the exponential.
    limit = (4e-7 * abs(low) + 1e-5) * float(expected.detach().abs().max())
    torch.testing.assert_close(got, expected, rtol=0, atol=limit)


@pytest.mark.parametrize(("name", "compiles"), [("llama", False), ("llama", True), ("mistral", False)])
def test_chunks_in_a_static_cache(torch, fo, build, monkeypatch, name, compiles):
    """The logits of transformers' own attention, without a mask of all pairs of positions."""
    from transformers import StaticCache

    model = build(name, **({} if name == "llama" else {"sliding_window": 2 * LENGTH}))
    ids = tokens(torch, model.device)["input_ids"]

    def logits(run):
        cache = StaticCache(config=model.config, max_cache_len=LENGTH + 3)
        with torch.no_grad():
            return torch.cat([run(each, past_key_values=cache).logits for each in ids.split([5, 4, 1, 3], 1)], 1)

    masks, attention = [], fo.attention

    def recording(*inputs, **options):
        masks.append(options["mask"])
        return attention(*inputs, **options)

    plain = logits(model)
    converted(fo, model)
    monkeypatch.setattr(fo, "attention", recording)
    torch.compiler.reset()  # compilations of other cases count against the limit, too
    got = logits(torch.compile(model, backend="eager") if compiles else model)
    torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-5)
    assert masks and all(mask is None or mask.shape[-2] == 1 for mask in masks)


def test_revert_restores_the_name(torch_cpu, fo, build, capsys, tmp_path):
    for name in ("sdpa", "eager"):
        model = build(attn_implementation=name, attention_dropout=0.1)
        fo.convert(model)
        assert f"  the attention of 2 LlamaAttention: {name} -> fusedops.torch.attention\n" in capsys.readouterr().out
        fo.convert(model)
        assert "the attention of 2 LlamaAttention is fusedops.torch's already" in capsys.readouterr().out
        model.save_pretrained(tmp_path)
        assert "fusedops" not in (tmp_path / "config.json").read_text(encoding="utf-8")
        assert fo.revert(model).config._attn_implementation == name
