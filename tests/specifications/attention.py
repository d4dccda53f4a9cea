import numpy as np

from tests.helpers.attention import STORAGE, Plain, beside, linear_bias, positions, roundings, seen
from tests.helpers.dropout import draw_seed, dropped
from tests.helpers.specification import Sample, Specification, bad_calls, pick


class Attention(Specification):
    name = "attention"
    signature = (
        "(q, k, v, *, causal=False, scale=None, mask=None, window=None, lengths=None, softcap=0.0, "
        "dropout=0.0, seed=None, seq_dim=-3, return_lse=False, alibi=None, sinks=None, query_offset=None, bias=None)"
    )
    terms = ("alibi", "sinks", "bias")
    not_differentiable = ("alibi",)
    least_rank = 1
    autocast = True
    bits_follow_from_values = False

    def sample(self, shape, random):
        """The columns are the features of as many positions of one head, with few keys: any number of them is fast."""
        queries, features = positions(shape[-1])
        return call(random, leading=shape[:-1], queries=queries, keys=3, features=features)

    def more_samples(self, random):
        # Heads that share keys, unequal numbers of keys, queries and features, around the tiles of kernels.
        yield call(random, "grouped", heads=(6, 2), queries=5, keys=7)
        yield call(random, "one-key-head", heads=(4, 1), queries=3, keys=9, features=5, features_v=3)
        yield call(random, "odd", heads=(3, 3), queries=33, keys=17, features=33, features_v=31)
        yield call(random, "blocks", leading=(1,), heads=(2, 1), queries=130, keys=300, features=64)
        for features in (64, 128, 136, 256):  # full and partial tiles of each kernel
            shape = {"heads": (2, 1), "queries": 140, "keys": 150, "features": features, "features_v": features}
            yield call(random, f"tiles-{features}", leading=(1,), causal=True, **shape)
        shape = {"heads": (3, 1), "queries": 40, "keys": 270, "features": 8}  # several heads add to the same gradients
        yield call(random, "tiles-grouped", leading=(1,), **shape)
        shape = {"queries": 140, "keys": 150, "features": 72, "features_v": 128}
        yield call(random, "tiles-window", leading=(1,), window=100, **shape)
        yield call(random, "tiles-lengths", leading=(2,), lengths=np.array([100, 150]), **shape)
        yield call(random, "tiles-mask", leading=(2,), mask=(2, 1, 140, 150), **shape)
        for features in (64, 128, 256):  # mask rows that start at multiples of 16 bytes
            shape = {"queries": 140, "keys": 160, "features": features, "mask": (2, 140, 160)}
            yield call(random, f"tiles-aligned-mask-{features}", leading=(1,), heads=(2, 1), causal=True, **shape)
        shape = {"queries": 140, "keys": 150, "features": 72, "features_v": 128}
        yield call(random, "tiles-mask-of-keys", leading=(2,), heads=(2, 2), mask=(2, 1, 1, 150), **shape)
        yield call(random, "tiles-softcap", leading=(1,), softcap=2.0, causal=True, **shape)
        for features, options in ((40, {"lengths": [200]}), (72, {"causal": True}), (136, {"window": 150})):
            shape = {"leading": (1,), "heads": (2, 1), "queries": 200, "keys": 270, "features": features}
            mask = in_blocks(random, 2, 200, 270)
            yield call(random, f"tiles-mask-of-blocks-{features}", mask=mask, **shape, **options)
        yield call(random, "wide", leading=(1,), heads=(1, 1), queries=9, keys=70, features=256, features_v=16)
        yield call(random, "wide-values", leading=(1,), heads=(1, 1), queries=9, keys=70, features=16, features_v=256)
        yield call(random, "one-query", leading=(1,), heads=(8, 2), queries=1, keys=200, features=32, causal=True)
        yield call(random, "rank-3", leading=(), heads=(2, 2))
        yield call(random, "rank-5", leading=(2, 3), heads=(2, 1))
        yield call(random, "no-keys", keys=0)
        yield call(random, "no-heads", heads=(0, 0))
        yield call(random, "no-heads-but-keys", heads=(0, 2))
        yield call(random, "no-heads-mask", heads=(0, 0), queries=40, keys=50, mask=(2, 1, 40, 50))
        yield call(random, "no-queries-mask", queries=0, mask=(2, 1, 1, 4))
        for queries, keys in ((5, 5), (3, 8), (8, 3), (65, 130)):
            shape = {"queries": queries, "keys": keys}
            yield call(random, f"causal-{queries}x{keys}", causal=True, **shape)
            yield call(random, f"window-{queries}x{keys}", window=3, **shape)
            yield call(random, f"causal-window-{queries}x{keys}", causal=True, window=2, **shape)
            yield call(random, f"behind-{queries}x{keys}", causal=True, seq_dim=-2, heads=(4, 2), **shape)
        for shape in ((5, 7), (4, 5, 7), (2, 4, 5, 7), (2, 1, 1, 7), (2, 1, 5, 1), (1, 4, 1, 1), (7,), ()):
            name = f"mask-{'x'.join(map(str, shape)) or 'scalar'}"
            yield call(random, name, heads=(4, 2), queries=5, keys=7, mask=shape)
        yield call(random, "mask-behind", heads=(4, 2), queries=5, keys=7, mask=(2, 1, 5, 7), seq_dim=-2)
        yield call(random, "mask-blocks", leading=(1,), queries=70, keys=200, mask=(70, 200), causal=True)
        for dtype in (np.int32, np.int64):
            lengths = np.array([4, 0], dtype)
            yield call(random, f"lengths-{np.dtype(dtype)}", heads=(2, 1), queries=5, keys=7, lengths=lengths)
        together = {"lengths": np.array([7, 3]), "mask": (2, 1, 5, 7), "causal": True, "window": 4, "softcap": 2.0}
        yield call(random, "together", heads=(4, 2), queries=5, keys=7, scale=0.3, **together)
        yield call(random, "lengths-of-one", leading=(), queries=5, keys=7, lengths=np.array(2))
        for softcap in (0.5, 30.0):
            yield call(random, f"softcap-{softcap}", queries=5, keys=7, softcap=softcap)
        for scale in (0.5, -0.7, 0, 3.0):
            yield call(random, f"scale-{scale}", queries=4, keys=33, scale=scale)
        splits = {"leading": (1,), "heads": (4, 2), "keys": 1100}
        yield call(random, "splits", queries=1, lengths=np.array([1090]), window=693, features=40, **splits)
        together = {"causal": True, "mask": (3, 1100), "softcap": 2.0, "dropout": 0.5}
        yield call(random, "splits-together", queries=3, features_v=5, **together, **splits)
        yield from self.with_dropout(random)
        yield from self.with_terms(random)
        yield from self.with_large_heads(random)
        large = call(random, "large", queries=4, keys=33)
        yield Sample({**large.inputs, "q": 1e3 * large.inputs["q"]}, large.options, "large")
        yield from self.with_bias(random)

    def with_dropout(self, random):
        """Numbers of keys that are not multiples of four: rows then start within a Philox counter."""
        for rate in (0.5, 0.1):
            yield call(random, f"dropout-{rate}", heads=(4, 2), queries=5, keys=9, dropout=rate)
        shape = {"heads": (4, 2), "queries": 5, "keys": 7, "dropout": 0.25}
        yield call(random, "dropout-behind", seq_dim=-2, causal=True, **shape)
        yield call(random, "dropout-rank-5", leading=(2, 3), **shape)
        together = {"lengths": np.array([7, 3]), "mask": (2, 1, 5, 7), "causal": True, "window": 4, "softcap": 2.0}
        yield call(random, "dropout-together", scale=-0.3, **shape, **together)
        yield call(random, "dropout-of-few", leading=(1,), heads=(8, 2), queries=1, keys=300, dropout=0.5)
        for features in (40, 64, 128, 256):  # the tiles of kernels
            shape = {"heads": (2, 1), "queries": 140, "keys": 150, "features": features, "features_v": features}
            yield call(random, f"dropout-tiles-{features}", leading=(1,), causal=True, dropout=0.5, **shape)
        shape = {"leading": (2,), "queries": 70, "keys": 132, "features": 64}
        yield call(random, "dropout-tiles-mask", mask=(2, 1, 70, 132), dropout=0.75, **shape)
        yield call(random, "dropout-tiles-softcap", lengths=np.array([100, 130]), softcap=2.0, dropout=0.5, **shape)

    def with_terms(self, random):
        """ALiBi, sinks and query offsets: alone, together, and in each kernel. Keys behind the last query's diagonal
        are seen by none."""
        shape = {"heads": (4, 2), "queries": 5, "keys": 9}
        yield call(random, "alibi", alibi=True, **shape)
        yield call(random, "sinks", sinks=True, causal=True, **{**shape, "keys": 3})  # rows without keys
        offset = np.array([4, 0])
        yield call(random, "offset", query_offset=offset, causal=True, window=3, **shape)
        together = {"alibi": True, "sinks": True, "query_offset": offset, "causal": True, "lengths": np.array([9, 3])}
        yield call(random, "terms", softcap=2.0, seq_dim=-2, mask=(2, 1, 5, 9), scale=-0.5, **together, **shape)
        yield call(random, "terms-of-one", leading=(1,), heads=(8, 2), queries=1, keys=300, **only(together, 200))
        for features in (64, 128, 192, 256):  # the tiles of kernels
            shape = {"heads": (2, 1), "queries": 200, "keys": 270, "features": features, "features_v": features}
            yield call(random, f"terms-{features}", leading=(1,), **shape, **only(together, 50))
        shape = {"leading": (2,), "queries": 140, "keys": 160, "features": 72}
        yield call(random, "terms-mask", alibi=True, sinks=True, mask=(2, 1, 140, 160), dropout=0.5, **shape)
        yield call(random, "terms-window", alibi=True, sinks=True, window=30, softcap=3.0, **shape)

    def with_large_heads(self, random):
        """More than 256 features: several slices and parts of columns, in full and partial tiles."""
        shape = {"leading": (1,), "queries": 9, "keys": 135}
        yield call(random, "heads-512", **{**shape, "queries": 66}, heads=(2, 1), features=512, causal=True)
        yield call(random, "heads-576", features=576, features_v=512, window=60, sinks=True, **shape)
        yield call(random, "heads-odd", features=321, features_v=259, mask=(9, 135), alibi=True, seq_dim=-2, **shape)
        together = {"lengths": np.array([130]), "query_offset": np.array([99]), "softcap": 2.0, "dropout": 0.5}
        bias = random_bias(random, (2, 1, 135))
        shape = {"heads": (2, 1), "features": 40, "features_v": 520, **shape}
        yield call(random, "heads-parts", bias=bias, causal=True, **together, **shape)
        shape = {"leading": (2,), "heads": (4, 2), "queries": 140, "keys": 270}  # tiles of kernels for 9.0
        lengths = np.array([260, 120])
        yield call(random, "heads-tiles", features=576, features_v=320, lengths=lengths, sinks=True, **shape)
        together = {"lengths": lengths, "query_offset": np.array([130, 20]), "mask": (2, 1, 140, 270), "alibi": True}
        together |= {"dropout": 0.5, "window": 100, "causal": True, "bias": random_bias(random, (4, 140, 270))}
        yield call(random, "heads-tiles-together", features=264, features_v=512, **together, **shape)
        shape["features"] = shape["features_v"] = 264
        yield call(random, "heads-tiles-softcap", softcap=2.0, scale=-0.3, bias=together["bias"], **shape)

    def with_bias(self, random):
        """Every way to broadcast, and every other option. Some keys are hidden by minus infinity, in some rows all.
        Without sinks the gradient is zero where the bias is the same for all keys."""
        shape = {"heads": (4, 2), "queries": 5, "keys": 7}
        mask = {"mask": (2, 1, 5, 7), "causal": True}
        rest = {"sinks": True, "lengths": np.array([7, 3]), "window": 4, "scale": -0.5, "seq_dim": -2}
        ways = {
            (2, 4, 5, 7): {"sinks": True, "softcap": 2.0, "alibi": True},
            (4, 5, 7): {"query_offset": np.array([2, 0]), "dropout": 0.5, **mask},
            (2, 1, 1, 7): rest,
            (2, 1, 5, 1): {"sinks": True, "softcap": 2.0, **mask},
            (1, 4, 1, 1): {"sinks": True, "dropout": 0.25},
            (7,): {"alibi": True, "causal": True, "window": 2},
            (): rest,
        }
        for way, options in ways.items():
            name = f"bias-{'x'.join(map(str, way)) or 'scalar'}"
            yield call(random, name, bias=random_bias(random, way), **shape, **options)
        hidden = random_bias(random, (4, 5, 7))
        hidden[random.random(size=hidden.shape) < 0.3] = hidden[0, 2:] = hidden[3] = -np.inf
        yield call(random, "bias-hides", bias=hidden, **shape)
        yield call(random, "bias-hides-together", bias=hidden, sinks=True, softcap=2.0, **mask, **shape)
        yield call(random, "bias-no-heads", **{**shape, "heads": (0, 0)}, bias=random_bias(random, (2, 1, 5, 7)))
        yield call(random, "bias-rank-5", leading=(2, 3), bias=random_bias(random, (3, 1, 5, 7)), **shape)
        yield call(random, "bias-of-few", heads=(8, 2), queries=1, keys=300, bias=random_bias(random, (8, 1, 300)))
        for features, way in ((64, (2, 140, 150)), (128, (140, 1)), (256, (1, 150))):  # the tiles of kernels
            shape = {"leading": (1,), "heads": (2, 1), "queries": 140, "keys": 150, "features": features}
            options = {"bias": random_bias(random, way), "sinks": True, "causal": features == 64}
            yield call(random, f"bias-tiles-{features}", features_v=features, **options, **shape)

    def low_curvature_sample(self, random):
        return Sample(self.sample((6, 32), random).inputs, {"scale": 1e-2})

    def draw(self, shape, random):
        options = {**drawn_options(random), "seq_dim": pick(random, -3, -2)}
        keys, heads, key_heads = pick(random, 0, 1, 3, 40, 150), pick(random, 1, 2, 3), pick(random, 1, 2)
        leading, queries = shape[:-1], min(shape[-1], 300)
        features, features_v = drawn_features(random)
        if max(features, features_v) > 64:  # their references take long
            heads, key_heads, queries = min(heads, 2), 1, min(queries, 150)
        full = (*leading, heads * key_heads, queries, keys)
        mask = tuple(pick(random, 1, size) for size in full[pick(random, *range(len(full) + 1)) :])
        extra = {
            "mask": pick(random, None, mask),
            "bias": pick(random, None, random_bias(random, mask), random_bias(random, mask, hidden=0.3)),
            "lengths": pick(random, None, random.integers(keys + 1, size=leading)),
            "dropout": pick(random, 0.0, 0.0, 0.5),
            "alibi": pick(random, False, True),
            "sinks": pick(random, False, True),
            "query_offset": pick(random, None, random.integers(keys + 1, size=leading)),
        }
        shapes = {"queries": queries, "keys": keys, "features": features, "features_v": features_v}
        return call(random, leading=leading, heads=(heads * key_heads, key_heads), **shapes, **extra, **options)

    def special(self, values, random):
        a, b = (grid.ravel() for grid in np.meshgrid(values, values))

        def rows(*columns):
            return np.stack(columns, -1)[:, :, None, None]  # one head of one feature

        for options in ({"scale": 1.0}, {"scale": -0.5}):
            one = np.ones_like(a)
            yield Sample({"q": rows(a), "k": rows(b, one), "v": rows(one, 2 * one)}, options)
            yield Sample({"q": rows(one), "k": rows(a, b), "v": rows(one, 2 * one)}, options)
            scores = np.stack([a, b], -1)[:, None, None]
            yield Sample({"q": rows(one), "k": rows(one, one), "v": rows(one, 2 * one), "bias": scores}, options)
            x, y = without_overflow(a, b)
            one = np.ones_like(x)
            yield Sample({"q": rows(one), "k": rows(one, one), "v": rows(x, y)}, options)

    def reference(self, **inputs):
        return arranged(plain(**inputs).value(), **inputs)

    def magnitude(self, **inputs):
        return arranged(plain(**inputs).magnitude(), **inputs)

    def gradients(self, dy, *dlse, **inputs):
        return self.named(plain(**inputs).gradients(arranged(dy, **inputs), *dlse), inputs)

    def gradient_magnitude(self, dy, *dlse, **inputs):
        return self.named(plain(**inputs).gradient_magnitude(arranged(dy, **inputs), *dlse), inputs)

    @staticmethod
    def named(found, inputs):
        return found | {name: arranged(found[name], **inputs) for name in "qkv"}

    def roundings(self, **inputs):
        q, k, v = (arranged(inputs[name], **inputs) for name in "qkv")
        times = q.shape[-3] // max(k.shape[-3], 1)
        rows = q.shape[-2] * int(np.prod(q.shape[:-3]))
        scores, bias = rows * q.shape[-3] * k.shape[-2], np.size(inputs.get("bias", 0.0))
        return roundings(q.shape[-2], k.shape[-2], times, v.shape[-1], rows, scores // max(bias, 1))

    def storage_roundings(self, **inputs):
        return STORAGE

    bad = bad_calls(
        "attention",
        {"q": "float32[2, 5, 4, 8]", "k": "float32[2, 5, 4, 8]", "v": "float32[2, 5, 4, 8]"},
        {
            "q must be float64, float32, float16 or bfloat16; got int32": "int32[2, 5, 4, 8]",
            "k must have q's dtype, float32; got int32": "int32[2, 5, 4, 8]",
            "v must have q's dtype, float32; got int32": "int32[2, 5, 4, 8]",
            "q must have at least 3 dimensions; got shape [5, 8]": dict.fromkeys(("q", "k", "v"), "float32[5, 8]"),
            "k must have at least 3 dimensions; got shape [5, 8]": "float32[5, 8]",
            "q must have 1 to 576 features in its last dimension; got shape [2, 5, 4, 577]": dict.fromkeys(
                ("q", "k"), "float32[2, 5, 4, 577]"
            ),
            "v must have 1 to 576 features in its last dimension; got shape [2, 5, 4, 584]": "float32[2, 5, 4, 584]",
            "k must have shape [2, S, Hk, 8] beside q of shape [2, 5, 4, 8]; got [2, 7, 4, 6]": {
                "k": "float32[2, 7, 4, 6]",
                "v": "float32[2, 7, 4, 8]",
            },
            "k must have shape [2, S, Hk, 8] beside q of shape [2, 5, 4, 8]; got [3, 7, 4, 8]": dict.fromkeys(
                ("k", "v"), "float32[3, 7, 4, 8]"
            ),
            "k must have shape [2, Hk, S, 8] beside q of shape [2, 4, 5, 8]; got [7, 4, 8]": {
                "q": "float32[2, 4, 5, 8]",
                "k": "float32[7, 4, 8]",
                "v": "float32[7, 4, 8]",
                "seq_dim": -2,
            },
            "k must have a number of heads that divides q's, 4; got 3": dict.fromkeys(
                ("k", "v"), "float32[2, 7, 3, 8]"
            ),
            "v must have shape [2, 7, 2, Dv] beside k of shape [2, 7, 2, 8]; got [2, 6, 2, 8]": {
                "k": "float32[2, 7, 2, 8]",
                "v": "float32[2, 6, 2, 8]",
            },
            "seq_dim must be -3 or -2; got 1": 1,
            "scale must be a finite number; got inf": float("inf"),
            "scale must be a finite number; got nan": float("nan"),
            "scale must be a number or None; got '2'": "2",
            "softcap must be a finite number, at least 0; got -1": -1.0,
            "softcap must be a finite number, at least 0; got nan": float("nan"),
            "window must be at least 1; got 0": 0,
            "window must be at least 1; got -3": -3,
            "window must be an integer or None; got 2.0": 2.0,
            "causal must be a bool; got 1": 1,
            "seed must be int64; got float32": {"seed": "float32[2]", "dropout": 0.5},
            "seed must have shape [2], a key and an offset, or [5] for a part; got [3]": {
                "seed": "int64[3]",
                "dropout": 0.5,
            },
            "seed must be an int64 tensor of shape [2], a pair of integers or None; got (1, 0.5)": {
                "seed": (1, 0.5),
                "dropout": 0.5,
            },
            "mask must be bool; got float32: True marks what is visible; a bias is added to the scores": {
                "mask": "float32[5, 5]"
            },
            "mask must be broadcastable to [2, 4, 5, 5], the heads, queries and keys; got [2, 5, 5]": "bool[2, 5, 5]",
            "mask must be broadcastable to [2, 4, 5, 5], the heads, queries and keys; got [1, 2, 4, 5, 5]": {
                "mask": "bool[1, 2, 4, 5, 5]"
            },
            "lengths must be int32 or int64; got float32": "float32[2]",
            "lengths must have shape [2], q's dimensions before its last three; got [3]": "int64[3]",
            "lengths must have shape [2], q's dimensions before its last three; got []": "int32[]",
            "alibi must have shape [4], one number for each head of q; got [2]": "float32[2]",
            "alibi must have q's dtype, float32; got int32": "int32[4]",
            "sinks must have shape [4], one number for each head of q; got [4, 1]": "float32[4, 1]",
            "sinks must have q's dtype, float32; got float16": "float16[4]",
            "bias must have q's dtype, float32; got bool": "bool[5, 5]",
            "bias must have q's dtype, float32; got float16": "float16[5, 5]",
            "bias must be broadcastable to [2, 4, 5, 5], the heads, queries and keys; got [2, 5, 5]": {
                "bias": "float32[2, 5, 5]"
            },
            "query_offset must be int32 or int64; got float32": "float32[2]",
            "query_offset must have shape [2], q's dimensions before its last three; got [3]": "int32[3]",
            "query_offset must be an int32 or int64 tensor, an integer or None; got 1.5": 1.5,
            "v must be a tensor; got NoneType": {"q": "float32[5, 4, 8]", "k": "float32[5, 4, 8]", "v": None},
        },
    )


def call(
    random,
    name="",
    leading=(2,),
    heads=(1, 1),
    queries=3,
    keys=4,
    features=8,
    features_v=None,
    mask=None,
    lengths=None,
    dropout=0.0,
    alibi=False,
    sinks=False,
    query_offset=None,
    bias=None,
    **options,
):
    def tensor(positions, heads, features):
        middle = (heads, positions) if options.get("seq_dim") == -2 else (positions, heads)
        return random.normal(size=(*leading, *middle, features))

    inputs = {
        "q": tensor(queries, heads[0], features),
        "k": tensor(keys, heads[1], features),
        "v": tensor(keys, heads[1], features_v or features),
    }
    if mask is not None:
        inputs["mask"] = mask if isinstance(mask, np.ndarray) else np.asarray(random.random(size=mask) < 0.7)
    if lengths is not None:
        inputs["lengths"] = np.asarray(lengths)
    if dropout:
        inputs["seed"], options = draw_seed(random), {**options, "dropout": dropout}
    if alibi:
        inputs["alibi"] = random.uniform(0.02, 0.5, size=heads[0])
    if sinks:
        inputs["sinks"] = random.normal(size=heads[0])
    if query_offset is not None:
        inputs["query_offset"] = np.asarray(query_offset)
    if bias is not None:
        inputs["bias"] = bias
    return Sample(inputs, options, name)


def random_bias(random, shape, hidden=0.0):
    """Minus infinity at random places, a share `hidden` of all."""
    bias = np.asarray(random.normal(size=shape))
    return np.where(random.random(size=shape) < hidden, -np.inf, bias) if hidden else bias


def drawn_options(random):
    return {
        "causal": pick(random, True, False),
        "window": pick(random, None, 1, 5),
        "softcap": pick(random, 0.0, 2.0),
        "scale": pick(random, None, 0.3, -1.0),
    }


def drawn_features(random):
    """D and Dv: every second pair has more than 64, of which each kernel takes some."""
    small, large = (1, 8, 33, 64), (8, 64, 72, 128, 192, 256, 264)
    sizes = pick(random, small, large)
    return pick(random, *sizes), pick(random, *sizes)


def only(options, offset):
    """The options for one sequence, with another query offset and without lengths."""
    return {**options, "query_offset": np.array([offset]), "lengths": None}


def in_blocks(random, *shape, size=128):
    """A mask with fully visible, partially visible and fully masked blocks: kernels need not read every tile of it."""
    blocks = [-(-length // size) for length in shape[-2:]]
    visible = random.integers(3, size=(*shape[:-2], *blocks))
    visible = visible.repeat(size, -1).repeat(size, -2)[..., : shape[-2], : shape[-1]]
    return np.where(visible == 1, random.random(size=shape) < 0.5, visible == 2)


def without_overflow(a, b):
    """Excludes pairs of finite numbers whose sum may overflow: weights are divided by their sum last."""
    finite = np.isfinite(a) & np.isfinite(b)
    largest = np.max(np.abs(a[finite]))
    fits = ~finite | (np.abs(a) <= largest - np.abs(np.where(finite, b, 0)))
    return a[fits], b[fits]


def arranged(x, seq_dim=-3, **_):
    """Moves heads before positions, and back."""
    return x if seq_dim == -2 else np.swapaxes(x, -3, -2)


def plain(
    q,
    k,
    v,
    mask=None,
    lengths=None,
    causal=False,
    scale=None,
    window=None,
    softcap=0.0,
    dropout=0.0,
    seed=None,
    seq_dim=-3,
    alibi=None,
    sinks=None,
    query_offset=None,
    bias=None,
):
    q, k, v = (arranged(x, seq_dim) for x in (q, k, v))
    diagonal, keys = beside(q.shape[-2], k.shape[-2], query_offset), k.shape[-2]
    visible = seen(diagonal, keys, causal, window)
    slopes = None if alibi is None else linear_bias(alibi, diagonal, keys)
    if lengths is not None:
        visible = visible & (np.arange(k.shape[-2]) < np.asarray(lengths)[..., None, None, None])
    if mask is not None:
        visible = visible & mask
    factors = dropped(np.ones((*q.shape[:-1], k.shape[-2]), q.dtype), dropout, seed) if dropout else 1.0
    return Plain(q, k, v, visible, scale, softcap, factors, slopes, sinks, bias)


SPECIFICATION = Attention()
