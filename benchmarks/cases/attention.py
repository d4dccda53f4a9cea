"""Cases of attention at the sizes of language models: 16384 tokens of 2048 features, long sequences, and decoding."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import BOTH, Case, Goal, attention_case, decoding

TOKENS, FEATURES = 16384, 2048
SIZES = ((64, 1024), (64, 16384), (128, 1024), (128, 4096), (128, 16384))  # (head dimension, positions)
LONG = (32_768, 131_072)
KINDS = ("attention", "attention_causal")


def attention() -> Iterator[Case]:
    for features, positions in SIZES:
        shape = (TOKENS // positions, positions, FEATURES // features, features)
        for kind in KINDS:
            yield attention_case("attention", "cuda", kind, "forward", "bfloat16", shape, Goal("torch", "cuDNN", 0.95))
            goals = (Goal("torch", "cuDNN", 0.85), Goal("torch", "flash", 1.5))
            yield attention_case("attention", "cuda", kind, "backward", "bfloat16", shape, *goals)
    for positions in LONG:
        goal = Goal("torch", "cuDNN", 0.95)
        yield attention_case("attention", "cuda", KINDS[1], "forward", "bfloat16", (1, positions, 16, 128), goal)
    step = (4, 4096, 16, 128)
    yield attention_case(
        "attention", "cuda", KINDS[1], BOTH, "bfloat16", step, Goal("tf", seconds=2.2e-3), frameworks=("torch", "tf")
    )


def decode() -> Iterator[Case]:
    goals = (Goal("torch", "copy", 0.9, as_time=True), Goal("torch", "fastest baseline", 1 / 1.02, as_time=True))
    yield decoding("cuda", "bfloat16", (1, 32_768, 8, 128), *goals)


def cpu() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16"):
        for shape in ((4, 1024, 16, 64), (1, 4096, 8, 128)):
            for kind in KINDS:
                for variant in ("forward", "backward"):
                    yield attention_case(
                        "attention-cpu", "cpu", kind, variant, dtype, shape, Goal("torch", "eager", 1.0)
                    )
