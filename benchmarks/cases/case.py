"""A case: the operation to measure, the minimum work it takes, and its goals."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from benchmarks.measuring.timing import Effort
from benchmarks.operators import OPERATORS
from benchmarks.operators.experts import PER_TOKEN

SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes


@dataclass(frozen=True)
class Section:
    title: str  # of the table
    effort: Effort  # long enough for reproducible figures, short enough that all cases take minutes
    is_quick: bool = True  # True if part of --quick; the others only if named by --section


SECTIONS = {
    "stream": Section("2^28 elements on the GPU: memory speed", Effort(round=4e-3, total=0.3, min_calls=3)),
    "launch": Section("relu on 1 048 576 float32: GPU time alone", Effort(round=2e-3, total=0.5, min_calls=5)),
    "matmul": Section("Matrix products on the GPU", Effort(round=8e-3, total=0.3, min_calls=3)),
    "linear": Section(
        "Linear layers in bfloat16 on the GPU: rows, features out, features in",
        Effort(round=8e-3, total=0.6, min_calls=3),
    ),
    "attention": Section(
        "Attention in bfloat16 on the GPU: batch, positions, heads, features",
        Effort(round=8e-3, total=0.3, min_calls=3),
    ),
    "decoding": Section(
        "Decoding in bfloat16 on the GPU: batch, keys, their heads, features; a query of four times the heads",
        Effort(round=2e-3, total=0.3, min_calls=2),
    ),
    "rows": Section("Rows in bfloat16 on the GPU: memory speed", Effort(round=4e-3, total=0.4, min_calls=2)),
    "float8": Section(
        "Rows of bfloat16 rounded to float8 with a scale each, on the GPU: memory speed",
        Effort(round=4e-3, total=0.4, min_calls=2),
    ),
    "dtypes": Section("Rows in other dtypes on the GPU", Effort(round=4e-3, total=0.3, min_calls=2), is_quick=False),
    "small": Section(
        "Few rows in bfloat16: GPU time alone, by CUDA graphs over inputs that rotate",
        Effort(round=1e-3, total=0.25, min_calls=2),
    ),
    "growth": Section(
        "Cost growth: elements, on the GPU its time alone", Effort(round=1e-3, total=0.2), is_quick=False
    ),
    "growth-rows": Section(
        "Cost growth: rows of 1024, on the GPU its time alone", Effort(round=1e-3, total=0.2), is_quick=False
    ),
    "growth-length": Section(
        "Cost growth: 64 rows of any length, on the GPU its time alone", Effort(round=1e-3, total=0.2), is_quick=False
    ),
    "seeds": Section(
        "The seeds of the field: 1 048 576 float32 on the GPU, calls in a row", Effort(round=2e-3, total=0.5)
    ),
    "seeds-cpu": Section("The seeds of the field, on the CPU", Effort(round=2e-3, total=0.5)),
    "first-use": Section(
        "First use of an expression: from its text to the result", Effort(round=0.0, total=5.0, max_rounds=9)
    ),
    "python": Section(
        "Rows in bfloat16 on the GPU: time of the Python call, forward and backward",
        Effort(round=5e-3, total=0.3, min_calls=5),
    ),
    "call": Section("A call on 16 or 64 floats, CPU", Effort(round=2e-3, total=0.4)),
    "call-gpu": Section("A call on 16 or 64 floats, GPU", Effort(round=2e-3, total=0.4)),
    "cpu": Section(
        "2^24 float32 on the CPU; matrix products of 2048, linear layers of 1024", Effort(round=0.0, total=1.2)
    ),
    "cpu-rows": Section("Rows in float32 on the CPU", Effort(round=10e-3, total=1.2)),
    "attention-cpu": Section(
        "Attention on the CPU: batch, positions, heads, features",
        Effort(round=0.0, total=2.0, max_rounds=5),
        is_quick=False,
    ),
    "decoding-cpu": Section(
        "Decoding on the CPU: batch, keys, their heads, features", Effort(round=5e-3, total=1.0), is_quick=False
    ),
    "generation": Section(
        "Generation by a tiny Llama on the CPU", Effort(round=0.0, total=5.0, min_rounds=5), is_quick=False
    ),
    "keras": Section(
        "Keras's layers, and a training step of a Llama", Effort(round=10e-3, total=1.0, min_calls=2), is_quick=False
    ),
    "transformers": Section(
        "Two layers of Hugging Face's Llama", Effort(round=50e-3, total=4.0, min_calls=2), is_quick=False
    ),
    "families": Section(
        "Training steps of two layers of other models of Hugging Face",
        Effort(round=50e-3, total=3.0, min_calls=2),
        is_quick=False,
    ),
    "steps": Section(
        "Whole training steps with AdamW",
        Effort(round=0.0, total=10.0, min_rounds=12, max_rounds=12),
        is_quick=False,
    ),
    # Several consecutive steps, as in training, so that the host can run ahead.
    "optimizers": Section(
        "A step of AdamW over many parameters: memory speed",
        Effort(round=0.0, total=5.0, min_calls=16, min_rounds=3, max_rounds=5),
        is_quick=False,
    ),
    # A fixed number of rounds, since all ranks must take as many steps.
    "distributed": Section(
        "Steps on several GPUs: the slowest rank", Effort(round=0.0, total=0.0, min_rounds=12, max_rounds=12)
    ),
}
CALLS = ("call", "call-gpu")
FIRST_USE = "first-use"
HOST_SECTIONS = ("python", FIRST_USE, *CALLS)  # sections that measure host time only
GROWTH = ("growth", "growth-rows", "growth-length")
STEPS = "steps"
OPTIMIZERS = "optimizers"
DISTRIBUTED = "distributed"

# Key of a row -> seconds published by others, on other machines: for PyTorch's operator, a simple custom kernel and an
# optimized one. They show which kernels were worth writing; they cannot be compared with ours.
PUBLISHED = {
    "seeds/relu/forward/float32/1048576": {"native": 45e-6, "simple custom": 40e-6, "optimized custom": 28e-6},
}

ALL = ("torch", "tf", "jax")  # frameworks

BOTH = "forward + backward"
RECORDED = "forward, recorded"  # recorded by autograd for a backward that is not run

# Number of weight matrices of matrix products and layers.
WEIGHTS = {
    "matmul": 1,
    "linear": 1,
    "gated_linear": 2,
    "grouped_matmul": 1,  # of each row
    "experts": 3 * PER_TOKEN,  # of each token
    "linear_cross_entropy": 1,
    "linear_log_prob": 1,
    "linear_kl_div": 2,
}


@dataclass(frozen=True)
class Goal:
    """A required ratio of an implementation's work per second to another's, or an upper limit on its time."""

    framework: str
    against: str = ""  # an implementation, or "fastest baseline"; "" if `seconds` is set
    speed: float = 1.0  # minimum ratio of the speeds of `implementation` and `against`
    implementation: str = "fusedops"
    against_framework: str = ""  # "": the same framework
    or_floor: str = ""  # an implementation; the goal is also met within 5 % of its time
    as_time: bool = False  # True to report a ratio of times instead of speeds
    seconds: float = 0.0  # upper limit on the time; 0: none


@dataclass(frozen=True)
class Case:
    section: str
    device: str
    operator: str
    variant: str  # forward, backward, ...
    dtype: str
    # Matrix product: M, N, K. Attention: batch, positions, heads, features. Decoding: the shape of the keys. Model:
    # batch, sequence. Family: number of layers. Optimizer: number of tensors, mean size. Several GPUs: their number.
    shape: tuple[int, ...]
    work: float
    unit: str  # of the work: "B", "FLOP", "token" or "step"
    frameworks: tuple[str, ...] = ("torch", "tf")
    goals: tuple[Goal, ...] = ()
    parameters: str = ""  # the dtype of weight and bias, if different

    @property
    def key(self) -> str:
        dtype = f"{self.dtype}+{self.parameters}" if self.parameters else self.dtype
        return "/".join((self.section, self.operator, self.variant, dtype, "x".join(map(str, self.shape))))

    @property
    def bytes(self) -> float:
        """The minimum memory traffic; 0 for models, whose traffic is not counted."""
        if self.is_attention:
            return float(SIZES[self.dtype] * 4 * prod(self.shape))  # q, k, v and the result
        if self.is_product:
            m, n, k = self.shape
            inputs, out = m * k + WEIGHTS[self.operator] * k * n, m * n
            # The backward reads the inputs and the upstream gradient, and writes the gradients of the inputs.
            return float(SIZES[self.dtype] * (3 * inputs + 2 * out if self.variant == BOTH else inputs + out))
        return self.work if self.unit == "B" else 0.0

    @property
    def flops(self) -> float:
        if self.unit != "B":
            return self.work if self.unit == "FLOP" else 0.0
        forward, backward = OPERATORS[self.operator].operations
        each = backward if self.variant == "backward" else forward
        return float((each + backward if self.variant == BOTH else each) * prod(self.shape))

    @property
    def cache(self) -> str:
        """The state of the GPU's cache when a call starts: see implementations/torch/caches.py."""
        if self.section in HOST_SECTIONS:
            return ""
        warm = self.device == "cpu" or self.section == "seeds" or self.variant.endswith("one buffer")
        return "warm" if warm else "cold"

    @property
    def is_product(self) -> bool:
        return self.operator in WEIGHTS

    @property
    def is_layer(self) -> bool:
        """True for a product with an epilogue, such as linear."""
        return self.is_product and self.operator != "matmul"

    @property
    def is_attention(self) -> bool:
        return self.section.startswith("attention")

    @property
    def is_arithmetic(self) -> bool:
        """True if the work is counted in FLOP, so that memory traffic gives no floor."""
        return self.unit == "FLOP"

    @property
    def is_model(self) -> bool:
        return self.unit == "token"

    @property
    def transposes(self) -> tuple[bool, bool]:
        if self.is_layer:
            return False, True  # weights are [out, in]
        return self.variant[0] == "T", self.variant[1] == "T"


def bandwidth_case(
    section: str,
    device: str,
    operator: str,
    variant: str,
    dtype: str,
    shape: tuple[int, ...],
    *goals: Goal,
    frameworks: tuple[str, ...] = ("torch", "tf"),
    parameters: str = "",
) -> Case:
    """A case whose work is its memory traffic; weights and other parameters are negligible."""
    forward, backward = OPERATORS[operator].moves
    tensors = backward if variant == "backward" else forward + backward if variant == BOTH else forward
    work = float(tensors * prod(shape) * SIZES[dtype])
    return Case(section, device, operator, variant, dtype, shape, work, "B", frameworks, goals, parameters)


def product(
    section: str,
    device: str,
    variant: str,
    dtype: str,
    shape: tuple[int, int, int],
    *goals: Goal,
    operator: str = "matmul",
    frameworks: tuple[str, ...] = ("torch", "tf"),
) -> Case:
    """A case of a matrix product or a layer; the backward has two products for each weight with a gradient."""
    frozen = OPERATORS[operator].frozen_weights
    products = 3 * WEIGHTS[operator] - 2 * frozen if variant == BOTH else WEIGHTS[operator]
    return Case(
        section, device, operator, variant, dtype, shape, products * 2.0 * prod(shape), "FLOP", frameworks, goals
    )


def as_fast_as_in_torch(framework: str = "tf") -> Goal:
    """The framework's time is at most 3 % above PyTorch's, both by the host's clock: others have no events."""
    return Goal(framework, "fusedops, host clock", 1 / 1.03, against_framework="torch", as_time=True)


def decoding(
    device: str, dtype: str, keys: tuple[int, int, int, int], *goals: Goal, operator: str = "attention_decoding"
) -> Case:
    """A case of attention with one query, whose work is reading keys and values."""
    section, work = "decoding-cpu" if device == "cpu" else "decoding", float(2 * prod(keys) * SIZES[dtype])
    return Case(section, device, operator, "forward", dtype, keys, work, "B", ("torch",), goals)


def attention_case(
    section: str,
    device: str,
    operator: str,
    variant: str,
    dtype: str,
    shape: tuple[int, int, int, int],
    *goals: Goal,
    frameworks: tuple[str, ...] = ("torch",),
    parameters: str = "",
) -> Case:
    """A case of attention: two products over the visible scores in the forward, five in the backward."""
    positions = shape[1]
    each = 2.0 * prod(shape) * positions / (2 if operator.endswith("causal") else 1)
    products = {"forward": 2, "backward": 5, BOTH: 7}[variant]
    work = products * each
    return Case(section, device, operator, variant, dtype, shape, work, "FLOP", frameworks, goals, parameters)
