"""Cases of Keras's layers, of models, and of whole training steps."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from benchmarks.cases.case import BOTH, STEPS, Case, Goal, bandwidth_case
from benchmarks.cases.over_rows import VARIANTS
from benchmarks.operators import OPERATORS
from benchmarks.operators.models import ENCODER, FAMILIES, LARGE_LLAMA, LLAMA, SMALL_LLAMA, TINY_LLAMA

STEP = "training step"


def keras() -> Iterator[Case]:
    """Layers with weights of the same dtype, and with float32 weights as in mixed precision; and a training step."""
    ahead = (Goal("tf", "XLA"), Goal("tf", "XLA", implementation="fusedops, XLA"))
    for operator in (x.name for x in OPERATORS.values() if x.keras):
        for variant in VARIANTS:
            goals = (*ahead, Goal("tf", "eager", 10.0)) if variant == BOTH else ahead
            for parameters in ("", "float32"):
                yield bandwidth_case(
                    "keras",
                    "cuda",
                    operator,
                    variant,
                    "bfloat16",
                    (16384, 8192),
                    *goals,
                    frameworks=("tf",),
                    parameters=parameters,
                )
            yield bandwidth_case("keras", "cpu", operator, variant, "float32", (1024, 1024), frameworks=("tf",))
    goals = (
        Goal("tf", "graph", 1.5, implementation="fusedops, graph"),
        Goal("tf", "XLA", implementation="fusedops, XLA"),
    )
    step = (LLAMA, STEP, ("tf",))
    yield _model("keras", "cuda", *step, "bfloat16", (1, 4096), *goals, parameters="float32")
    yield _model("keras", "cpu", *step, "float32", (2, 64))


def transformers() -> Iterator[Case]:
    goals = (
        Goal("torch", "eager", 1.08),
        Goal("torch", "Liger"),
        Goal("torch", "compiled", implementation="fusedops, compiled"),
    )
    yield _model("transformers", "cuda", LLAMA, BOTH, ("torch",), "bfloat16", (1, 4096), *goals)
    yield _model("transformers", "cpu", LLAMA, BOTH, ("torch",), "float32", (2, 64))


def steps() -> Iterator[Case]:
    """Forward, backward and optimizer: the gain from converting both a model and its optimizer."""
    goals = [Goal("torch", name, implementation=f"fusedops, {name}") for name in ("compiled", "compiled, CUDA graphs")]
    for model, tokens in ((LARGE_LLAMA, 4096), (SMALL_LLAMA, 128)):
        yield _model(STEPS, "cuda", model, STEP, ("torch",), "bfloat16", (1, tokens), *goals)
    yield _model(STEPS, "cuda", ENCODER, STEP, ("tf",), "bfloat16", (16, 1024), parameters="float32")
    yield _model(STEPS, "cpu", LLAMA, STEP, ("torch",), "float32", (1, 32))
    yield _model(STEPS, "cpu", ENCODER, STEP, ("tf",), "float32", (2, 32))


def families() -> Iterator[Case]:
    goal = Goal("torch", "compiled", implementation="fusedops, compiled")
    for family in FAMILIES:
        yield Case("families", "cuda", family, BOTH, "bfloat16", (2,), 1.0, "step", ("torch",), (goal,))


def generation() -> Iterator[Case]:
    yield _model("generation", "cpu", TINY_LLAMA, "generate", ("torch",), "float32", (1, 32), Goal("torch", "eager"))


def _model(
    section: str,
    device: str,
    operator: str,
    variant: str,
    frameworks: tuple[str, ...],
    dtype: str,
    shape: tuple[int, int],
    *goals: Goal,
    parameters: str = "",
) -> Case:
    tokens = float(prod(shape))
    return Case(section, device, operator, variant, dtype, shape, tokens, "token", frameworks, goals, parameters)
