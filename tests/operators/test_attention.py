"""attention and attention_varlen: comparison with PyTorch's own, memory, masks, packed tensors, and calls that a CPU
refuses."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward
from tests.helpers.numerics import assert_same_bits, half_ulp
from tests.helpers.specification import Sample, any_order
from tests.specifications import SPECIFICATIONS
from tests.specifications.attention import call, random_bias
from tests.specifications.attention_varlen import call as varlen_call

SPECIFIED = {spec.name: spec for spec in SPECIFICATIONS}


def normal(random, *shape):
    return random.normal(size=shape)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
def test_as_torch_computes_it(torch_backend, causal, heads, random):
    """In float64, forward and backward; torch aligns causality at the beginning, which is the same for T = S."""
    torch = torch_backend.torch
    sizes = [(2, 150, count, 40) for count in (heads[0], heads[1], heads[1])]
    tensors = [torch_backend.tensor(normal(random, *size), "float64") for size in sizes]
    leaves = [x.clone().requires_grad_() for x in tensors]
    (y,) = torch_backend.call("attention", named(*leaves), {"causal": causal})
    others = [x.clone().requires_grad_() for x in tensors]
    own = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in others), is_causal=causal, enable_gqa=True
    ).transpose(1, 2)
    dy = torch_backend.tensor(normal(random, *y.shape), "float64")
    found = [torch.autograd.grad(out, inputs, dy) for out, inputs in ((y, leaves), (own, others))]
    for got, expected in zip((y, *found[0]), (own, *found[1]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


def named(*tensors):
    return dict(zip("qkv", tensors, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sequence_does_not_depend_on_the_others(any_backend, dtype, random):
    """The same bits alone, packed with others, or with keys beyond its length, which are never read."""
    few = 3 if dtype == "float32" else 33  # fewer rows have their own 16-bit GPU kernels
    sizes, heads, features = (few, 200, 64), (4, 2, 2), 32
    packed = [normal(random, sum(sizes), count, features) for count in heads]
    dy = normal(random, sum(sizes), heads[0], features)

    def results(name, upstream, inputs, **options):
        tensors = {key: any_backend.tensor(x, dtype) for key, x in inputs.items()}
        found = any_backend.gradients(name, tensors, options, ("q", "k", "v"), (any_backend.tensor(upstream, dtype),))
        return [any_backend.to_numpy(x) for x in (*found[0], *found[1].values())]

    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    both = {"offsets_q": offsets, "offsets_k": offsets}
    whole = results("attention_varlen", dy, {**named(*packed), **both}, causal=True)
    for first, last in itertools.pairwise(offsets):
        q, k, v = (x[None, first:last] for x in packed)
        upstream = dy[None, first:last]
        alone = results("attention", upstream, named(q, k, v), causal=True)
        for got, expected in zip(whole, alone, strict=True):
            assert_same_bits(got[first:last], expected[0])
        unread = np.full((1, 137, heads[1], features), np.nan)
        longer = named(q, *(np.concatenate([x, unread], 1) for x in (k, v)))
        padded = results("attention", upstream, {**longer, "lengths": np.array([last - first])})
        for got, expected in zip(padded, results("attention", upstream, named(q, k, v)), strict=True):
            assert_same_bits(got[:, : last - first], expected)
            assert not np.any(got[:, last - first :])


def test_packed_tensors_are_read_in_place(torch_backend, random):
    """Slices of [B, T, 3, H, D], and transposed heads: neither is copied."""
    torch = torch_backend.torch
    packed = torch_backend.tensor(normal(random, 2, 33, 3, 4, 16), "float32")
    slices = packed.unbind(2)
    expected = torch_backend.call("attention", named(*(x.contiguous() for x in slices)))[0]
    heads_first = [x.transpose(1, 2) for x in slices]
    with torch.profiler.profile(profile_memory=True) as profile:
        got = torch_backend.call("attention", named(*slices))[0]
        turned = torch_backend.call("attention", named(*heads_first), {"seq_dim": -2})[0]
    assert not {"aten::copy_", "aten::clone", "aten::contiguous"} & {event.key for event in profile.key_averages()}
    assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(expected))
    assert_same_bits(torch_backend.to_numpy(turned.transpose(1, 2)), torch_backend.to_numpy(expected))


LONG = """
import resource
import numpy, torch
import fusedops.torch as fo

torch.set_num_threads(2)
q, k, v = (torch.randn(1, 16384, 1, 8, requires_grad=True) for _ in range(3))
few = [x[:, :256].detach().requires_grad_() for x in (q, k, v)]
fo.attention(*few, causal=True).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fo.attention(q, k, v, causal=True).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_training_step_has_no_buffer_of_all_scores(torch_cpu):
    """16384 x 16384 scores would take 1 GiB in float32, and 256 MiB as booleans."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024  # KiB


def test_fully_masked_rows(any_backend, dtype, random):
    """Results and gradients are zeros, without any effect on the keys' gradients: by the mask, by lengths and by
    causality."""
    keys = 3
    inputs = {name: normal(random, 2, size, 2, 8) for name, size in (("q", 5), ("k", keys), ("v", keys))}
    mask = np.ones((2, 1, 5, keys), bool)
    mask[0, 0, 4] = False
    inputs |= {"mask": mask, "lengths": np.array([keys, 0])}
    tensors = {name: any_backend.tensor(x, dtype) for name, x in inputs.items()}
    (y,), gradients = any_backend.gradients("attention", tensors, {"causal": True}, ("q", "k", "v"))
    y, dq, dk, dv = (any_backend.to_numpy(x) for x in (y, *gradients.values()))
    empty = np.zeros((2, 5), bool)
    empty[0, [0, 1, 4]] = empty[1] = True  # query 2 is the first with a visible key
    assert not np.any(y[empty]) and not np.any(dq[empty])
    assert np.all(y[~empty]) and np.any(dk[0]) and np.any(dv[0])
    assert not np.any(dk[1]) and not np.any(dv[1])


@pytest.mark.parametrize("masked", [False, True])
def test_rows_that_see_nothing_but_minus_infinity(any_backend, dtype, masked, random):
    """Such a row is 0 / 0: its results and the gradients of its visible keys are NaN, all others are unaffected."""
    queries, few = 70, 30
    q, k, v = -np.ones((2, queries, 1, 64)), normal(random, 2, queries, 1, 64), normal(random, 2, queries, 1, 64)
    k[0, :few] = np.inf  # scores of -inf
    inputs = named(q, k, v) | ({"mask": np.tri(queries, dtype=bool)} if masked else {})
    tensors = {name: any_backend.tensor(x, dtype) for name, x in inputs.items()}
    (y,), gradients = any_backend.gradients("attention", tensors, {} if masked else {"causal": True}, ("v",))
    for x in (y, gradients["v"]):
        blind = np.isnan(any_backend.to_numpy(x).astype(np.float64))
        assert np.all(blind[0, :few]) and not np.any(blind[0, few:]) and not np.any(blind[1])


def on_a_cpu(backend):
    if backend.device != "cpu":
        pytest.skip("GPU: it clamps them, since it cannot raise")


@pytest.mark.parametrize("mode", ["eager", "traced", "xla"])
@pytest.mark.parametrize("function", ["attention", "attention_varlen"])
def test_errors_of_calls_with_lse(any_backend, function, mode, random):
    """They name the public function, wherever they are raised: its operator has a name of its own."""
    on_a_cpu(any_backend)
    if mode == "xla" and any_backend.framework != "tf":
        pytest.skip("JAX: always by XLA; PyTorch: it has none")
    x = any_backend.tensor(normal(random, 7, 1, 4), "float32")
    number = any_backend.from_numpy(np.array([0, 3, 8], np.int32))
    if function == "attention":
        inputs, number = {}, any_backend.from_numpy(np.array(8, np.int32))
        sentence = "lengths must be in [0, 7], the number of keys; got 8 for sequence 0"
    else:
        inputs = {"offsets_q": any_backend.from_numpy(np.array([0, 3, 7], np.int32))}
        sentence = "offsets_k must end with the number of positions, 7; got 8 at position 2"
    name = "lengths" if function == "attention" else "offsets_k"

    def call(x, number):
        return any_backend.call(function, {**dict.fromkeys("qkv", x), **inputs, name: number}, {"return_lse": True})

    if mode == "xla":
        call = any_backend.tf.function(call, jit_compile=True)
    elif mode == "traced":
        call = any_backend.traced(call)
    with pytest.raises(any_backend.errors, match=re.escape(f"fusedops.{function}: {sentence}")):
        [any_backend.to_numpy(y) for y in call(x, number)]


@pytest.mark.parametrize("value", [1, None, "yes"])
@pytest.mark.parametrize("name", ["attention", "attention_varlen"])
def test_return_lse_must_be_a_bool(any_backend, name, value, random):
    x = any_backend.tensor(normal(random, 7, 1, 4), "float32")
    inputs: dict = dict.fromkeys("qkv", x)
    if name == "attention_varlen":
        inputs |= dict.fromkeys(("offsets_q", "offsets_k"), any_backend.from_numpy(np.array([0, 7], np.int32)))
    for option in ("return_lse", "causal"):
        sentence = f"fusedops.{name}: {option} must be a bool; got {value!r}"
        with pytest.raises(TypeError, match=re.escape(sentence)):
            any_backend.call(name, inputs, {option: value})


@pytest.mark.parametrize("number", [-1, 8])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("name", ["lengths", "query_offset"])
def test_numbers_of_keys_out_of_range(any_backend, name, number, kind, random):
    on_a_cpu(any_backend)
    tensors = {name: any_backend.tensor(normal(random, 2, 7, 1, 4), "float32") for name in "qkv"}
    sentence = f"fusedops.attention: {name} must be in [0, 7], the number of keys; got {number} for sequence 1"
    with pytest.raises(any_backend.errors, match=re.escape(sentence)):
        any_backend.call("attention", {**tensors, name: any_backend.tensor(np.array([7, number], kind), "float32")})


@pytest.mark.parametrize("queries", [70, 2])
@pytest.mark.parametrize(
    ("features", "options"),
    [
        (64, {}),
        (64, {"window": 30}),
        (64, {"softcap": 2.0}),
        (64, {"alibi": True}),
        (64, {"mask": (70, 272)}),
        (64, {"dropout": 0.5}),
        (128, {"bias": (2, 70, 272)}),
        (128, {"bias": (2, 70, 272), "dropout": 0.5}),
        (192, {"sinks": True}),
        (256, {}),
        (264, {"alibi": True, "sinks": True}),
    ],
    ids=str,
)
def test_query_offsets_out_of_range_on_a_gpu(any_gpu, features, options, queries, dtype, random):
    """Such a sequence sees no key, so that results and gradients are zeros. Covers every kernel."""
    keys, given = 272, dict(options)
    if queries < 70:  # split-KV, and the kernels for few queries
        given = {key: (*x[:-2], queries, keys) if isinstance(x, tuple) else x for key, x in given.items()}
    if "bias" in given:
        given["bias"] = random_bias(random, given["bias"])
    shape = {"heads": (2, 1), "queries": queries, "keys": keys, "features": features, "features_v": features}
    sample = call(random, leading=(3,), query_offset=np.array([-1, keys + 1, 5]), causal=True, **shape, **given)
    wanted = SPECIFIED["attention"].differentiable(sample)
    with_poisoned_memory(any_gpu, [(sample.inputs[name].shape, dtype) for name in wanted])
    (y,), gradients = any_gpu.gradients("attention", any_gpu.tensors(sample, dtype), sample.options, wanted)
    for name, x in {"y": y, **{name: gradients[name] for name in "qkv"}}.items():
        numbers = any_gpu.to_numpy(x).astype(np.float64)
        assert not np.any(numbers[:2]) and np.any(numbers[2]), name
    for x in gradients.values():
        assert np.all(np.isfinite(any_gpu.to_numpy(x).astype(np.float64)))


def test_one_query_offset_for_all_sequences(any_backend, random):
    """An integer has the bits of a tensor. A query offset of S - T, with the keys behind it unread, is the default."""
    q, k, v = (any_backend.tensor(normal(random, 2, size, 1, 8), "float32") for size in (3, 9, 9))
    given = any_backend.from_numpy(np.array([4, 4], np.int32))
    found = [
        any_backend.call("attention", inputs, {"causal": True, **options})[0]
        for inputs, options in (
            (named(q, k, v), {"query_offset": 4}),
            ({**named(q, k, v), "query_offset": given}, {}),
            (named(q, k[:, :7], v[:, :7]), {}),
        )
    ]
    for other in found[1:]:
        assert_same_bits(any_backend.to_numpy(found[0]), any_backend.to_numpy(other))


def combinations(names, seed=0):
    """A few selections of the names: any three names occur in each of the eight ways."""
    random, columns = np.random.default_rng(seed), list(itertools.combinations(range(len(names)), 3))
    seen = np.zeros((len(columns), 8), bool)
    while not seen.all():
        drawn = random.random(size=(40, len(names))) < 0.5
        ways = drawn[:, columns] @ (1, 2, 4)  # [drawn, columns]
        best = np.argmax((~seen[np.arange(len(columns)), ways]).sum(1))
        seen[np.arange(len(columns)), ways[best]] = True
        yield [name for name, is_selected in zip(names, drawn[best], strict=True) if is_selected]


def check_combination(backend, name, sample, selected, dtype):
    spec = SPECIFIED[f"{name}_lse" if "lse" in selected else name]
    sample = Sample(sample.inputs, sample.options, " ".join(selected) or "none")
    inputs = backend.tensors(sample, dtype, spec if "float32 terms" in selected else None)
    check_forward(backend, spec, sample, inputs)
    check_backward(backend, spec, sample, inputs)


def check_combinations(backend, dtype, random, queries, keys, **shape):
    batch, heads = 2, shape["heads"][0]
    bias = random_bias(random, (heads, queries, keys), hidden=0.2)
    bias[0, 2] = -np.inf
    options = {
        "causal": {"causal": True},
        "window": {"window": keys // 2},
        "lengths": {"lengths": np.array([keys - 1, keys // 2])},
        "mask": {"mask": (batch, 1, queries, keys)},
        "softcap": {"softcap": 2.0},
        "scale": {"scale": 0.3},
        "dropout": {"dropout": 0.25},
        "alibi": {"alibi": True},
        "sinks": {"sinks": True},
        "query_offset": {"query_offset": np.array([keys // 3, 1])},
        "bias": {"bias": bias},
        "seq_dim": {"seq_dim": -2},
        "lse": {},
        "float32 terms": {},
    }
    for selected in combinations(options):
        given = {key: value for name in selected for key, value in options[name].items()}
        sample = call(random, leading=(batch,), queries=queries, keys=keys, **shape, **given)
        check_combination(backend, "attention", sample, selected, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_options_together(any_backend, dtype, random):
    """Any three options, given and not given, beside many of the others."""
    check_combinations(any_backend, dtype, random, 5, 8, heads=(4, 2), features=8)


@pytest.mark.parametrize("features", [64, 128, 192, 256, 264])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_options_together_in_tiles(any_gpu, narrow, features, random):
    """In the kernels for 9.0 and, with a soft cap, for 8.0: rows of the bias begin at multiples of 16 bytes."""
    check_combinations(any_gpu, narrow, random, 140, 152, heads=(2, 1), features=features, features_v=features)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_options_together_in_decoding(any_gpu, narrow, random):
    check_combinations(any_gpu, narrow, random, 3, 304, heads=(4, 2), features=64)


VARLEN = {
    "causal": {"causal": True},
    "window": {"window": 30},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.3},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "lse": {},
    "float32 terms": {},
}


def check_varlen_combinations(backend, dtype, features, random):
    for selected in combinations(VARLEN):
        options = {key: value for name in selected for key, value in VARLEN[name].items()}
        sample = varlen_call(random, [33, 0, 70, 2], [40, 5, 70, 1], "", (4, 2), features, **options)
        check_combination(backend, "attention_varlen", sample, selected, dtype)


@pytest.mark.parametrize("features", [64, 128, 192])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_last_heads_of_a_causal_backward(any_gpu, narrow, features, random):
    """The kernels for 9.0 take the keys of the last eighth of the heads from the first on, and others from the last on:
    several tiles of each, in batches, packed, and with keys shared by heads of both directions."""
    shape = {"features": features, "features_v": features, "causal": True}
    options = {
        "lengths": {"lengths": np.array([424, 250]), "query_offset": np.array([130, 1])},
        "bias": {"bias": random_bias(random, (8, 300, 424), hidden=0.2)},
        "alibi": {"alibi": True},
    }
    for heads, name in (((8, 2), "none"), ((20, 1), "none"), *(((8, 2), name) for name in options)):
        sample = call(random, leading=(2,), queries=300, keys=424, heads=heads, **shape, **options.get(name, {}))
        check_combination(any_gpu, "attention", sample, ["causal", name], narrow)
    for heads in ((8, 2), (20, 1)):
        sample = varlen_call(random, [300, 1, 130], [420, 3, 130], "", heads, features, causal=True)
        check_combination(any_gpu, "attention_varlen", sample, ["causal"], narrow)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_options_together_of_packed_sequences(any_backend, dtype, random):
    check_varlen_combinations(any_backend, dtype, 8, random)


@pytest.mark.parametrize("features", [64, 128, 192, 256, 264])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_options_together_of_packed_sequences_in_tiles(any_gpu, narrow, features, random):
    check_varlen_combinations(any_gpu, narrow, features, random)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float32_terms_beside_16_bits(any_backend, narrow, random):
    """In the kernels of each dtype: with few queries, and with a soft cap, where only GPUs select others."""
    spec = SPECIFIED["attention"]
    names = ("terms", "terms-128", "terms-of-one", "bias-2x4x5x7", "bias-of-few", "bias-tiles-64")
    for sample in (*spec.with_terms(random), *spec.with_bias(random)):
        if sample.name in names:
            inputs = any_backend.tensors(sample, narrow, spec)
            check_forward(any_backend, spec, sample, inputs)
            check_backward(any_backend, spec, sample, inputs)


@pytest.mark.parametrize("rows, digits", [(0, 28), (4, 38)], ids=["keys", "keys-and-rows"])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_low_float32_bias_beside_16_bits(any_backend, narrow, rows, digits, random):
    """Large negative numbers mask: alone in the last tile of keys, and in some rows, whose tolerance is large."""
    spec = SPECIFIED["attention"]
    bias = -(10.0 ** random.uniform(5, digits, size=(2, 140, 150)))
    bias[:, rows:, :120] = normal(random, 2, 140 - rows, 120)
    q, k, v = (normal(random, 1, length, 2, 64) for length in (140, 150, 150))
    sample = Sample({"q": q, "k": k, "v": v, "bias": bias}, {}, "low-bias")
    inputs = any_backend.tensors(sample, narrow, spec)
    check_forward(any_backend, spec, sample, inputs)
    check_backward(any_backend, spec, sample, inputs)


@pytest.mark.parametrize("features", [64, 128, 264])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_lowest_float32_bias_beside_16_bits(any_backend, narrow, features, random):
    """It hides keys, as masks of transformers do: here the last ones, so that a tile has no others."""
    few, keys = 120, 152
    q, k, v = (normal(random, 1, length, 2, features) for length in (140, keys, keys))
    bias = normal(random, 2, 140, keys)
    bias[..., few:] = np.finfo(np.float32).min

    def results(keys):
        inputs = {name: any_backend.tensor(x, narrow) for name, x in named(q, k[:, :keys], v[:, :keys]).items()}
        inputs["bias"] = any_backend.tensor(bias[..., :keys], "float32")
        (y,), gradients = any_backend.gradients("attention", inputs, {}, ("q",))
        return [any_backend.to_numpy(x).astype(np.float64) for x in (y, gradients["q"])]

    for got, expected in zip(results(keys), results(few), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2**-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    "offsets, sentence",
    [
        ([1, 3, 7], "begin with 0; got 1 at position 0"),
        ([0, 8, 7], "ascend; got 7 at position 2"),
        ([0, 3, 6], "end with the number of positions, 7; got 6 at position 2"),
        ([0, 3, 9], "end with the number of positions, 7; got 9 at position 2"),
    ],
)
@pytest.mark.parametrize("name", ["offsets_q", "offsets_k"])
def test_offsets_out_of_range(any_backend, offsets, sentence, name, random):
    on_a_cpu(any_backend)
    inputs = {name: normal(random, 7, 1, 4) for name in "qkv"}
    inputs |= {"offsets_q": np.array([0, 3, 7], np.int32), "offsets_k": np.array([0, 3, 7], np.int32)}
    inputs[name] = np.array(offsets, np.int32)
    tensors = {key: any_backend.tensor(x, "float32") for key, x in inputs.items()}
    with pytest.raises(any_backend.errors, match=re.escape(f"fusedops.attention_varlen: {name} must {sentence}")):
        any_backend.call("attention_varlen", tensors)


# Offsets into 7 positions.
OUT_OF_ORDER = {
    "short": [0, 3, 6],
    "late": [2, 3, 7],
    "inside": [2, 3, 5],
    "beyond": [0, 3, 9],
    "negative": [-4, 3, 7],
    "falling": [0, 5, 2, 7],
    "falling-to-the-end": [1, 6, 2],
    "no-rows": [4, 4, 4],
    "no-sequences": [3],
}


def with_poisoned_memory(backend, shapes):
    """Frees tensors of NaN as large as the results, so that the allocator reuses their memory for these."""
    poison = [backend.tensor(np.full(shape, np.nan), dtype) for shape, dtype in shapes for _ in range(4)]
    for tensor in poison:
        backend.to_numpy(tensor)  # waits for its allocation and fill


@pytest.mark.parametrize("name", OUT_OF_ORDER)
@pytest.mark.parametrize("sides", ["q", "k", "qk"])
@pytest.mark.parametrize(
    ("features", "options"),
    [
        *((64, options) for options in ({}, {"causal": True}, {"softcap": 5.0}, {"alibi": True}, {"sinks": True})),
        *((features, {}) for features in (20, 128, 192, 256, 264)),
        (128, {"alibi": True, "sinks": True}),
        (264, {"sinks": True, "softcap": 5.0}),
    ],
    ids=str,
)
def test_offsets_out_of_order_on_a_gpu(any_gpu, name, sides, features, options, dtype, random):
    """Each offset counts as the running maximum, within the positions: every row belongs to the first sequence that
    contains it, with the bits of a call in order. Rows in no sequence are zeros, as are their gradients, and their
    log-sum-exp is -inf. The gradients of sinks are finite. Covers the sm90, sm80 and simt kernels."""
    tile = 40  # so that sequences have several tiles
    size = 7 * tile
    inputs = {key: any_gpu.tensor(normal(random, size, 2 if key == "q" else 1, features), dtype) for key in "qkv"}
    terms = {key: any_gpu.tensor(random.random(2), dtype) for key in ("alibi", "sinks") if options.get(key)}
    options = {key: value for key, value in options.items() if key not in terms}
    wanted = ("q", "k", "v", *(["sinks"] if "sinks" in terms else []))
    dy = any_gpu.tensor(normal(random, size, 2, features), dtype)
    bad = np.array(OUT_OF_ORDER[name]) * tile
    good = np.linspace(0, 7, len(bad)).astype(int) * tile if len(bad) > 1 else np.array([0])
    given = {side: (bad if side in sides else good).astype(np.int32) for side in "qk"}
    in_order = {side: np.maximum.accumulate(np.clip(x, 0, size)) for side, x in given.items()}

    def run(inputs, dy, offsets):
        tensors = {
            **inputs,
            **{f"offsets_{side}": any_gpu.from_numpy(x.astype(np.int32)) for side, x in offsets.items()},
            **terms,
        }
        (y,), gradients = any_gpu.gradients("attention_varlen", tensors, options, wanted, (dy,))
        assert np.all(np.isfinite(any_gpu.to_numpy(gradients.get("sinks", y)).astype(np.float64)))
        gradients = {name: gradients[name] for name in "qkv"}
        _, lse = any_gpu.call("attention_varlen", tensors, {**options, "return_lse": True})
        return [any_gpu.to_numpy(x) for x in (y, *gradients.values())], any_gpu.to_numpy(lse)

    shapes = [(tuple(x.shape), dtype) for x in (*inputs.values(), dy)] + [((2, size), "float32")]
    with_poisoned_memory(any_gpu, shapes)
    found, lse = run(inputs, dy, given)
    rows = {side: slice(x[0], x[-1]) for side, x in in_order.items()}
    for result, side in zip(found, "qqkk", strict=True):
        outside = np.ones(size, bool)
        outside[rows[side]] = False
        assert not np.any(result[outside].astype(np.float64))
    assert np.all(np.isneginf(np.delete(lse, rows["q"], axis=1)))
    if not all(x.stop > x.start for x in rows.values()):
        return
    parts = {key: x[rows["q" if key == "q" else "k"]] for key, x in inputs.items()}
    expected, right_lse = run(parts, dy[rows["q"]], {side: x - x[0] for side, x in in_order.items()})
    for result, right, side in zip(found, expected, "qqkk", strict=True):
        assert_same_bits(result[rows[side]], right)
    assert_same_bits(lse[:, rows["q"]], right_lse)


def test_no_queries_out_of_order_on_a_gpu(any_gpu, dtype, random):
    """The gradients of all keys are zeros, also of those in no sequence."""
    inputs = {key: any_gpu.tensor(normal(random, 0 if key == "q" else 300, 2, 64), dtype) for key in "qkv"}
    offsets = {"q": [0, 0], "k": [100, 200]}
    tensors = inputs | {f"offsets_{side}": any_gpu.from_numpy(np.array(x, np.int32)) for side, x in offsets.items()}
    dy = any_gpu.tensor(normal(random, 0, 2, 64), dtype)
    with_poisoned_memory(any_gpu, [((300, 2, 64), dtype)])
    _, gradients = any_gpu.gradients("attention_varlen", tensors, {}, ("q", "k", "v"), (dy,))
    for key in "kv":
        assert not np.any(any_gpu.to_numpy(gradients[key]).astype(np.float64))


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_large_heads_in_several_chunks(any_gpu, narrow, random):
    """Scores of 16 heads that share keys are stored in two chunks in the forward, and in three in the backward: the
    results of a head do not depend on the others, and gradients of keys are sums over heads."""
    queries, keys, heads, features = 1024, 4224, 16, 264
    q = normal(random, 2, queries, heads, features)
    k, v = (normal(random, 2, keys, 1, features) for _ in "kv")
    dy, offset = normal(random, 2, queries, heads, features), any_gpu.from_numpy(np.array([3000, 3000], np.int32))

    def results(first, last):
        inputs = {name: any_gpu.tensor(x, narrow) for name, x in named(q[:, :, first:last], k, v).items()}
        inputs["query_offset"] = offset
        upstream = (any_gpu.tensor(dy[:, :, first:last], narrow),)
        (y,), gradients = any_gpu.gradients("attention", inputs, {"causal": True}, ("q", "k", "v"), upstream)
        return [any_gpu.to_numpy(x) for x in (y, *gradients.values())]

    whole, parts = results(0, heads), [results(first, first + 4) for first in range(0, heads, 4)]
    for i in (0, 1):
        assert_same_bits(whole[i], np.concatenate([part[i] for part in parts], 2))
    for i in (2, 3):  # sums in float32; each part is rounded to 16 bits, and so is the whole
        terms = np.stack([part[i] for part in parts]).astype(np.float64)
        limit = half_ulp(np.abs(terms).sum(0) + np.abs(terms.sum(0)), narrow)
        limit += any_order(queries * heads) * half_ulp(np.abs(terms).max(), "float32")
        assert np.all(np.abs(whole[i].astype(np.float64) - terms.sum(0)) <= limit)
        assert not np.any(whole[i][:, 3000 + queries :].astype(np.float64))


def test_few_head_groups_have_the_bits_of_many(any_backend, random):
    """The backward divides one head group into other work tiles than many."""
    one = {name: normal(random, 1, 300, 1, 16) for name in "qkv"}
    dy = normal(random, 1, 300, 1, 16)
    found = []
    for times in (1, 12):
        tensors = {name: any_backend.tensor(np.repeat(x, times, 0), "float32") for name, x in one.items()}
        upstream = (any_backend.tensor(np.repeat(dy, times, 0), "float32"),)
        _, gradients = any_backend.gradients("attention", tensors, {"causal": True}, ("q", "k", "v"), upstream)
        found.append([any_backend.to_numpy(x)[:1] for x in gradients.values()])
    for got, expected in zip(*found, strict=True):
        assert_same_bits(got, expected)
