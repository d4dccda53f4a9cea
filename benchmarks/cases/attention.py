"""Cases of attention at the sizes of language models: 16384 tokens of 2048 features, long sequences, and decoding."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import ALL, BOTH, Case, Goal, attention_case, decoding
from benchmarks.cases.over_rows import JAX_GOALS
from benchmarks.operators import OPERATORS

TOKENS, FEATURES = 16384, 2048
SIZES = ((64, 1024), (64, 16384), (128, 1024), (128, 4096), (128, 16384))  # (head dimension, positions)
LONG = (32_768, 131_072)
KINDS = ("attention", "attention_causal")
BIASES = ("attention_bias", "attention_learned_bias")
PACKED = "attention_packed_causal"
OPTIONS = ("attention_alibi_causal", "attention_sinks_causal", "attention_offset_causal", *BIASES, PACKED)
DECODING = ("attention_decoding", "attention_decoding_heads")  # a query of four times the heads, and of as many
STEP = (4, 4096, 16, 128)
NARROW_FEATURES = 256  # the most that cuDNN takes
NARROW = f"cuDNN, {NARROW_FEATURES} features"  # of heads with more
XLA_POSITIONS = 4096  # the scores of more would fill a GPU
GOALS = {
    "forward": (Goal("torch", "cuDNN", 0.95),),
    "backward": (Goal("torch", "cuDNN", 0.85), Goal("torch", "flash", 1.5)),
}


def attention() -> Iterator[Case]:
    for features, positions in SIZES:
        shape = (TOKENS // positions, positions, FEATURES // features, features)
        frameworks = ("torch", "jax") if positions <= XLA_POSITIONS else ("torch",)
        for kind in KINDS:
            for variant, goals in GOALS.items():
                where = ("attention", "cuda", kind, variant, "bfloat16", shape)
                yield attention_case(*where, *goals, *JAX_GOALS, frameworks=frameworks)
    for positions in LONG:
        goal = Goal("torch", "cuDNN", 0.95)
        yield attention_case("attention", "cuda", KINDS[1], "forward", "bfloat16", (1, positions, 16, 128), goal)
    goals = (Goal("tf", seconds=2.2e-3), *JAX_GOALS)
    yield attention_case("attention", "cuda", KINDS[1], BOTH, "bfloat16", STEP, *goals, frameworks=ALL)


def options() -> Iterator[Case]:
    """Attention with an option, beside the same without it. Packed sequences are short, and have equal lengths."""
    for kind in OPTIONS:
        parameters = "float32" if any(x.parameter for x in OPERATORS[kind].inputs) else ""
        shape = (16, 1024, 16, 128) if kind == PACKED else STEP
        others = [Goal("torch", name, 1.0) for name in OPERATORS[kind].torch_others]
        most = {"attention_bias": 1.25, PACKED: 1.05}.get(kind, 1.03)  # of the time without
        goals = others if kind == BIASES[1] else [Goal("torch", "without", 1 / most, as_time=True), *others]
        for variant in GOALS:
            yield attention_case("attention", "cuda", kind, variant, "bfloat16", shape, *goals, parameters=parameters)


def large_heads() -> Iterator[Case]:
    for kind in KINDS:
        for variant in GOALS:
            goal = Goal("torch", NARROW, 0.6)
            yield attention_case("attention", "cuda", kind, variant, "bfloat16", (2, 4096, 8, 512), goal)


def decode() -> Iterator[Case]:
    goals = (Goal("torch", "copy", 0.9, as_time=True), Goal("torch", "fastest baseline", 1 / 1.02, as_time=True))
    yield decoding("cuda", "bfloat16", (1, 32_768, 8, 128), *goals)


def cpu() -> Iterator[Case]:
    for operator in DECODING:
        for dtype in ("float32", "bfloat16"):
            yield decoding("cpu", dtype, (1, 2048, 16, 64), Goal("torch", "eager", 1.0), operator=operator)
    for dtype in ("float32", "bfloat16"):
        for shape in ((4, 1024, 16, 64), (1, 4096, 8, 128)):
            for kind in KINDS:
                for variant in ("forward", "backward"):
                    yield attention_case(
                        "attention-cpu", "cpu", kind, variant, dtype, shape, Goal("torch", "eager", 1.0)
                    )
