import math

import numpy as np

from tests.helpers.attention import STORAGE, Plain, beside, linear_bias, positions, roundings, seen
from tests.helpers.specification import Sample, Specification, bad_calls, pick
from tests.specifications.attention import drawn_features, drawn_options


class AttentionVarlen(Specification):
    name = "attention_varlen"
    signature = (
        "(q, k, v, offsets_q, offsets_k, *, causal=False, scale=None, window=None, softcap=0.0, return_lse=False, "
        "alibi=None, sinks=None)"
    )
    terms = ("alibi", "sinks")
    not_differentiable = ("alibi",)
    least_rank = 1
    autocast = True
    bits_follow_from_values = False
    rows_are_independent = False
    packed = True

    def sample(self, shape, random):
        """Each row is a sequence: its columns are the features of as many positions of one head, with few keys."""
        count, (queries, features) = math.prod(shape[:-1]), positions(shape[-1])
        return call(random, [queries] * count, [3] * count, features=features)

    def more_samples(self, random):
        yield call(random, [5, 0, 3, 1], [7, 2, 0, 4], "grouped", heads=(4, 2))
        yield call(random, [9, 33], [130, 17], "odd", heads=(3, 1), features=33, features_v=5)
        yield call(random, [], [], "no-sequences")
        yield call(random, [0, 0], [0, 0], "empty-sequences")
        for causal in (False, True):
            for window in (None, 3):
                name = f"{'causal' * causal}-{window}"
                yield call(random, [5, 40, 2], [5, 40, 2], name, heads=(2, 1), causal=causal, window=window)
                yield call(random, [3, 8], [8, 3], f"{name}-unequal", causal=causal, window=window)
        yield call(random, [3, 5], [4, 2], "softcap", softcap=1.5, scale=0.7)
        yield call(random, [3, 5], [4, 2], "scale", scale=-2.0)
        yield call(random, [3, 5, 0], [4, 2, 3], "terms", heads=(4, 2), alibi=True, sinks=True, causal=True)
        yield call(random, [70, 0, 9], [130, 5, 70], "heads-512", (2, 1), 512, causal=True)
        yield call(random, [70, 150], [190, 150], "terms-tiles", (2, 1), 128, alibi=True, sinks=True, causal=True)

    def low_curvature_sample(self, random):
        sample = self.sample((6, 32), random)
        return Sample(sample.inputs, {"scale": 1e-2})

    def draw(self, shape, random):
        options = drawn_options(random)
        options |= {"alibi": pick(random, False, True), "sinks": pick(random, False, True)}
        count = min(math.prod(shape[:-1]), 20)
        queries, keys = (random.integers(min(shape[-1], 60) + 1, size=count).tolist() for _ in range(2))
        heads, key_heads = pick(random, 1, 2, 3), pick(random, 1, 2)
        features, features_v = drawn_features(random)
        if max(features, features_v) > 64:  # their references take long
            heads, key_heads = min(heads, 2), 1
        shapes = {"heads": (heads * key_heads, key_heads), "features": features, "features_v": features_v}
        return call(random, queries, keys, **shapes, **options)

    def special(self, values, random):
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))
        one = np.ones_like(a)

        def rows(*columns):
            return np.stack(columns, -1).reshape(-1, 1, 1)

        offsets = np.arange(len(a) + 1, dtype=np.int32)
        inputs = {"q": rows(a), "k": rows(b, one), "v": rows(one, 2 * one)}
        yield Sample({**inputs, "offsets_q": offsets, "offsets_k": 2 * offsets}, {"scale": 1.0})

    def reference(self, **inputs):
        return joined([x.value() for _, x in sequences(**inputs)], inputs["q"], inputs["v"])

    def magnitude(self, **inputs):
        return joined([x.magnitude() for _, x in sequences(**inputs)], inputs["q"], inputs["v"])

    def gradients(self, *upstream, **inputs):
        return pulled_back(Plain.gradients, upstream, inputs)

    def gradient_magnitude(self, *upstream, **inputs):
        return pulled_back(Plain.gradient_magnitude, upstream, inputs)

    def roundings(self, **inputs):
        queries, keys = (int(np.max(np.diff(inputs[f"offsets_{name}"]), initial=0)) for name in "qk")
        times = inputs["q"].shape[1] // max(inputs["k"].shape[1], 1)
        return roundings(queries, keys, times, inputs["v"].shape[-1], inputs["q"].shape[0])

    def storage_roundings(self, **inputs):
        return STORAGE

    bad = bad_calls(
        "attention_varlen",
        {
            "q": "float32[5, 4, 8]",
            "k": "float32[5, 4, 8]",
            "v": "float32[5, 4, 8]",
            "offsets_q": "int32[3]",
            "offsets_k": "int32[3]",
        },
        {
            "q must be float64, float32, float16 or bfloat16; got int32": "int32[5, 4, 8]",
            "k must have q's dtype, float32; got float16": "float16[5, 4, 8]",
            "q must have 3 dimensions: positions, heads, features; got shape [1, 5, 4, 8]": "float32[1, 5, 4, 8]",
            "v must have 3 dimensions: positions, heads, features; got shape [5, 8]": "float32[5, 8]",
            "k must have a number of heads that divides q's, 4; got 3": "float32[5, 3, 8]",
            "v must have shape [5, 4, Dv] beside k of shape [5, 4, 8]; got [6, 4, 8]": "float32[6, 4, 8]",
            "offsets_q must be int32; got int64": "int64[3]",
            "offsets_q must have shape [B + 1], for B sequences; got [1, 3]": "int32[1, 3]",
            "offsets_k must have shape [B + 1], for B sequences; got [0]": "int32[0]",
            "offsets_k must have offsets_q's shape, [3]; got [4]": "int32[4]",
            "alibi must have shape [4], one number for each head of q; got [3]": "float32[3]",
            "alibi must have q's dtype, float32; got float16": "float16[4]",
            "sinks must have shape [4], one number for each head of q; got [5]": "float32[5]",
            "sinks must have q's dtype, float32; got int32": "int32[4]",
            "window must be at least 1; got 0": 0,
            "scale must be a finite number; got inf": float("inf"),
        },
    )


def call(
    random, queries, keys, name="", heads=(1, 1), features=8, features_v=None, alibi=False, sinks=False, **options
):
    def tensor(positions, heads, features):
        return random.normal(size=(sum(positions), heads, features))

    inputs = {
        "q": tensor(queries, heads[0], features),
        "k": tensor(keys, heads[1], features),
        "v": tensor(keys, heads[1], features_v or features),
        **{f"offsets_{name}": np.cumsum([0, *sizes], dtype=np.int32) for name, sizes in (("q", queries), ("k", keys))},
    }
    if alibi:
        inputs["alibi"] = random.uniform(0.02, 0.5, size=heads[0])
    if sinks:
        inputs["sinks"] = random.normal(size=heads[0])
    return Sample(inputs, options, name)


def sequences(
    q, k, v, offsets_q, offsets_k, causal=False, scale=None, window=None, softcap=0.0, alibi=None, sinks=None
):
    """The plain computation of each sequence, or of all at once if they have one size."""
    sizes, key_sizes = np.diff(offsets_q), np.diff(offsets_k)
    alike = len(set(sizes)) == len(set(key_sizes)) == 1
    for b in (slice(None),) if alike else map(slice, range(len(sizes)), range(1, len(sizes) + 1)):
        (queries, *_), (keys, *_) = sizes[b], key_sizes[b]
        rows, of_keys = (slice(o[:-1][b][0], o[1:][b][-1]) for o in (offsets_q, offsets_k))
        parts = ((q[rows], queries), (k[of_keys], keys), (v[of_keys], keys))
        heads_first = (np.swapaxes(x.reshape(len(sizes[b]), size, *x.shape[1:]), 1, 2) for x, size in parts)
        diagonal = beside(queries, keys)
        slopes = None if alibi is None else linear_bias(alibi, diagonal, keys)
        visible = seen(diagonal, keys, causal, window)
        yield rows, Plain(*heads_first, visible, scale, softcap, slopes=slopes, sinks=sinks)


def joined(parts, like, v):
    """Concatenates sequences of [B, H, positions, features]."""
    empty = np.zeros((0, like.shape[1], v.shape[-1]), like.dtype)
    return np.concatenate([empty, *(np.swapaxes(x, 1, 2).reshape(-1, *empty.shape[1:]) for x in parts)])


def joined_log(parts, like):
    """The parts, [B, H, positions] each, as [H, positions] one behind the other."""
    empty = np.zeros((like.shape[1], 0), like.dtype)
    return np.concatenate([empty, *(np.swapaxes(x, 0, 1).reshape(x.shape[1], -1) for x in parts)], -1)


def pulled_back(method, upstream, inputs):
    """The gradients by name, as a method of Plain gives them for each sequence."""
    found = []
    for rows, plain in sequences(**inputs):
        batch, heads, queries, _ = plain.q.shape
        dy, *dlse = upstream
        of_y = np.swapaxes(dy[rows].reshape(batch, queries, heads, dy.shape[-1]), 1, 2)
        of_log = (np.swapaxes(x[:, rows].reshape(heads, batch, queries), 0, 1) for x in dlse)
        found.append(method(plain, of_y, *of_log))
    gradients = {name: joined([gradients[name] for gradients in found], inputs[name], inputs[name]) for name in "qkv"}
    sinks = inputs.get("sinks")
    return (
        gradients if sinks is None else {**gradients, "sinks": sum((x["sinks"] for x in found), np.zeros_like(sinks))}
    )


SPECIFICATION = AttentionVarlen()
