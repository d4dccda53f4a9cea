"""Kernel selection by the dispatch tables in core_cuda, and its log, FUSEDOPS_LOG=dispatch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import astuple, dataclass
from typing import ClassVar

import pytest

from fusedops.loading import FRAMEWORKS
from tests.helpers.running import PROGRAMS, ROOT, environment

CORE = ROOT / "core_cuda"
SOURCES = [
    *(
        f"ops/products/{name}.cpp"
        for name in ("gated_linear", "matmul", "matmul_dispatch", "matmul_tiles", "aligned_copies")
    ),
    "ops/attention/attention_dispatch.cpp",
    "ops/experts/grouped_dispatch.cpp",
    "core/declaration/view.cpp",
]

# Properties of a GPU that the tables read: compute capability, multiprocessors, shared memory, sm90 kernels.
H100, A100 = (9, 0, 132, 233472, 1), (8, 0, 108, 167936, 0)
WHOLE, SUMS, SPLIT_PART, HALVES = range(4)  # kinds of results


class Problem:
    """A dataclass whose fields the program reads, after its kind and the GPU."""

    kind: ClassVar[str]

    def line(self, gpu: tuple[int, ...]) -> str:
        return " ".join(map(str, (self.kind, *gpu, *astuple(self))))


@dataclass(frozen=True)
class Product(Problem):
    kind = "product"
    dtype: str
    m: int
    n: int
    k: int
    transpose_a: int = 0
    transpose_b: int = 1
    batch: int = 1
    pad: int = 0  # elements between rows
    offset: int = 0  # elements before the first one
    result: int = WHOLE
    activation: int = 0  # 1: relu


@dataclass(frozen=True)
class Attention(Problem):
    kind = "attention"
    dtype: str
    backward: int
    queries: int
    keys: int
    group: int = 1  # heads per key head
    features: int = 64
    mask: int = 0
    dropout: int = 0
    softcap: int = 0
    alibi: int = 0
    bias: int = 0


@dataclass(frozen=True)
class Grouped(Problem):
    kind = "grouped"
    dtype: str
    gradient: int
    groups: int
    rows: int
    n: int
    k: int
    offset: int = 0  # elements before the weights, or before x for the gradient


@dataclass(frozen=True)
class GatedLinear(Problem):
    kind = "gated_linear"
    dtype: str
    rows: int
    columns: int
    depth: int
    pad: int = 0  # elements between the rows of up_weight
    same: int = 0  # one weight for both


@dataclass(frozen=True)
class Logits(Problem):
    kind = "logits"
    dtype: str
    rows: int
    classes: int
    depth: int
    softcap: int = 0


HALF = "bfloat16"
# A problem, and its kernels on an H100 and on an A100.
PRODUCTS = [
    (Product(HALF, 4096, 4096, 4096), "sm90 large tiles 128x256", "sm80 tiles 128x128"),
    (Product(HALF, 1, 4096, 4096), "sm90 swap-AB 8x64, 2 splits of k", "simt GEMV"),
    (Product("float16", 1024, 4096, 512), "sm90 swap-AB 256x128", "sm80 tiles 128x128"),
    (Product(HALF, 8192, 8192, 1024, activation=1), "sm90 ping-pong tiles 128x128", "sm80 tiles 128x128"),
    (Product(HALF, 200, 264, 65536), "split-K", "split-K"),
    (Product(HALF, 264, 200, 1024, batch=9, result=SPLIT_PART), "sm90 tiles 128x128", "sm80 tiles 64x64"),
    (Product(HALF, 4096, 4096, 4096, result=SUMS), "sm90 large tiles 128x256", "sm80 tiles 64x64"),
    (Product(HALF, 32000, 4096, 2048, 1, 0, result=HALVES), "sm90 halves 128x256", "blocks of halves"),
    (Product(HALF, 64, 4096, 2048, 1, 0, result=HALVES), "blocks of halves", "blocks of halves"),
    (Product(HALF, 512, 512, 512, batch=8), "sm90 large tiles 128x256", "sm80 tiles 128x128"),
    (Product(HALF, 50257, 72, 1001, 1, pad=7), "parts by TMA", "sm80 tiles 128x128"),
    (Product(HALF, 4096, 4096, 1027), "aligned copies", "aligned copies"),
    # Few rows or columns: a long k, one address for all kernels, and the same bits for up to 64 rows on sm90.
    (Product(HALF, 4, 4097, 4099), "simt GEMV", "simt GEMV"),
    (Product(HALF, 5, 4097, 4099), "aligned copies", "aligned copies"),
    (Product(HALF, 1, 4096, 4096, pad=8, offset=1), "simt GEMV", "simt GEMV"),
    (Product(HALF, 1, 4096, 4096, 1, 0), "sm90 swap-AB 8x64, 2 splits of k", "simt GEMV"),
    (Product(HALF, 1, 4096, 4096, 1, 0, pad=8), "simt GEMV", "simt GEMV"),
    (Product(HALF, 1, 4096, 4096, result=SUMS), "simt GEMV", "simt GEMV"),
    (Product(HALF, 64, 1, 4096), "sm90 swap-AB 64x64, 4 splits of k", "simt GEMV"),
    (Product(HALF, 65, 1, 4096), "simt GEMV", "simt GEMV"),
    (Product("float32", 1, 4096, 4096), "simt GEMV", "simt GEMV"),
    (Product("float32", 4, 4096, 256), "simt GEMV", "simt GEMV"),
    (Product("float32", 4, 4096, 255), *2 * ("simt tiles 32x32, slices of k",)),
    (Product("float64", 4096, 4, 4096, 1, 0), "simt GEMV", "simt GEMV"),
    (Product("float32", 5, 4096, 4096), "split-K", "split-K"),
    (Product("float32", 1, 4096, 4096, batch=2), *2 * ("simt tiles 32x64, slices of k",)),
    (
        Product(HALF, 64, 64, 64, pad=8, offset=1),
        "sm80 tiles 64x64 through registers",
        "sm80 tiles 64x64 through registers",
    ),
    (Product(HALF, 4096, 4096, 32, pad=8, offset=1), *2 * ("sm80 tiles 128x128 through registers",)),
    (Product(HALF, 64, 64, 64, batch=2), "sm80 tiles 64x64", "sm80 tiles 64x64"),
    (Product("float32", 4096, 4096, 1027), "simt tiles 128x256", "simt tiles 128x256"),
    (Product("float32", 60000, 128, 64), "simt tiles 256x128", "simt tiles 64x64"),
    (Product("float32", 1088, 512, 100), "simt tiles 64x64", "simt tiles 64x64"),
    (Product("float32", 1056, 512, 100), *2 * ("simt tiles 32x64, slices of k",)),
    (Product("float32", 192, 704, 100, pad=1), *2 * ("simt tiles 32x32, slices of k",)),
    (Product("float32", 192, 705, 100, 1, 0), *2 * ("simt tiles 32x64, slices of k",)),
    (Product("float32", 64, 64, 100, batch=33), *2 * ("simt tiles 32x32, slices of k",)),
    (Product("float32", 64, 64, 8192), "split-K", "split-K"),
    (Product("float64", 100, 200, 100), *2 * ("sm80 float64 tiles 32x32",)),
    (Product("float64", 768, 704, 100), "sm80 float64 tiles 64x64", "sm80 float64 tiles 32x32"),
    (Product("float64", 4096, 4096, 100), "sm80 float64 tiles 64x128", "sm80 float64 tiles 64x64"),
    (Product(HALF, 64, 64, 0), "fill", "fill"),
    (Product(HALF, 0, 64, 8), "no kernel", "no kernel"),
]
ATTENTIONS = [
    (Attention("float32", 0, 128, 128), "simt", "simt"),
    (Attention("float64", 1, 128, 128, dropout=1), *2 * ("simt with dropout, ALiBi or bias",)),
    (Attention("float32", 0, 1, 4096, alibi=1), *2 * ("simt with dropout, ALiBi or bias",)),
    (Attention(HALF, 0, 1, 4096, group=4), "sm80 split-KV", "sm80 split-KV"),
    (Attention(HALF, 0, 1, 64), "sm80", "sm80"),
    (Attention(HALF, 0, 128, 128), "sm90", "sm80"),
    (Attention("float16", 0, 128, 128, mask=1), "sm90 with mask or dropout", "sm80"),
    (Attention(HALF, 0, 128, 128, dropout=1), "sm90 with mask or dropout", "sm80 with dropout, ALiBi or bias"),
    (Attention(HALF, 0, 128, 128, alibi=1), "sm90 with ALiBi", "sm80 with dropout, ALiBi or bias"),
    (Attention(HALF, 1, 128, 128, features=256, alibi=1), "sm90 with ALiBi", "sm80 with dropout, ALiBi or bias"),
    (Attention(HALF, 1, 128, 128, mask=1, alibi=1), "sm90 with mask or dropout", "sm80 with dropout, ALiBi or bias"),
    (Attention("float32", 1, 128, 128, bias=1), *2 * ("simt with dropout, ALiBi or bias",)),
    (Attention(HALF, 0, 1, 4096, bias=1), "sm80 split-KV", "sm80 split-KV"),
    (Attention(HALF, 0, 128, 128, mask=1, alibi=1, bias=1), "sm90 with bias", "sm80 with dropout, ALiBi or bias"),
    (Attention(HALF, 0, 128, 128, bias=1), "sm90 with bias", "sm80 with dropout, ALiBi or bias"),
    (
        Attention(HALF, 1, 128, 128, features=128, bias=1),
        "sm90 with tiles of a bias",
        "sm80 with dropout, ALiBi or bias",
    ),
    (Attention(HALF, 0, 128, 128, features=256, bias=1), "sm90 with bias", "sm80 with dropout, ALiBi or bias"),
    (Attention(HALF, 1, 128, 129, features=128, bias=1), "sm90 with bias", "sm80 with dropout, ALiBi or bias"),
    (Attention(HALF, 1, 128, 128, features=256, bias=1), *2 * ("sm80 with dropout, ALiBi or bias",)),
    (Attention(HALF, 0, 128, 128, softcap=30), "sm80", "sm80"),
    (Attention(HALF, 0, 128, 128, features=65), "sm80", "sm80"),
    (Attention(HALF, 1, 128, 128, features=256), "sm90", "sm80"),
    (Attention(HALF, 1, 128, 128, features=256, mask=1), "sm80", "sm80"),
    (Attention(HALF, 1, 128, 128, features=128, mask=1), "sm90 with mask or dropout", "sm80"),
    (Attention(HALF, 1, 128, 128, features=256, dropout=1), *2 * ("sm80 with dropout, ALiBi or bias",)),
    (Attention(HALF, 0, 1, 4096, features=257), *2 * ("sm80 with large heads",)),
    (Attention(HALF, 0, 128, 128, features=257), *2 * ("sm80 with large heads",)),
    (Attention(HALF, 0, 128, 128, features=264), "sm90 with large heads", "sm80 with large heads"),
    (Attention(HALF, 1, 128, 128, features=512, bias=1), "sm90 with large heads", "sm80 with large heads"),
    (Attention("float32", 1, 128, 128, features=512), *2 * ("simt",)),
]

GROUPED = [
    (Grouped(HALF, 0, 8, 1000, 256, 72), "sm90 grouped tiles", "sm80 grouped tiles 64x64"),
    (Grouped("float16", 1, 8, 1001, 256, 72), "sm90 grouped tiles", "sm80 grouped tiles 64x64"),
    (Grouped(HALF, 0, 0, 1000, 256, 72), *2 * ("sm80 grouped tiles 64x64",)),
    (Grouped(HALF, 0, 8, 1000, 256, 72, offset=1), *2 * ("sm80 grouped tiles 64x64 through registers",)),
    (Grouped(HALF, 1, 8, 1000, 256, 70), *2 * ("sm80 grouped tiles 64x64 through registers",)),
    (Grouped(HALF, 1, 8, 1000, 1, 72), *2 * ("sm80 grouped tiles 64x64 through registers",)),
    (Grouped("float32", 0, 8, 1000, 256, 72), *2 * ("simt grouped tiles 64x64",)),
    (Grouped("float64", 1, 8, 1000, 256, 72), *2 * ("sm80 float64 grouped tiles 64x64",)),
    (Grouped(HALF, 0, 8, 0, 256, 72), *2 * ("no kernel",)),
]

GATED, CALLED = "sm90 gated tiles 128x64", "calls of linear and gated_act"
GATED_LINEARS = [
    (GatedLinear(HALF, 256, 4096, 64), GATED, CALLED),
    (GatedLinear(HALF, 256, 4096, 64, pad=8), GATED, CALLED),
    (GatedLinear("float16", 256, 4096, 64, same=1), GATED, CALLED),
    (GatedLinear(HALF, 256, 4096, 64, pad=1), CALLED, CALLED),
    (GatedLinear(HALF, 64, 65536, 64), CALLED, CALLED),
    (GatedLinear("float32", 256, 4096, 64), CALLED, CALLED),
]
FUSED, BLOCKS = "sm90 logits in registers 128x128", "blocks of logits"
LOGITS = [
    (Logits(HALF, 4096, 8192, 512), FUSED, BLOCKS),
    (Logits(HALF, 4096, 8192, 512, softcap=30), FUSED, BLOCKS),
    (Logits(HALF, 4096, 8192, 512, softcap=65), BLOCKS, BLOCKS),
    (Logits(HALF, 4096, 8191, 512), BLOCKS, BLOCKS),
    (Logits("float32", 4096, 8192, 512), BLOCKS, BLOCKS),
]


@pytest.fixture(scope="module")
def kernels_of(tmp_path_factory):
    """Maps problems on a GPU to the names of the selected kernels. Needs no GPU."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("g++ is not installed")
    program = tmp_path_factory.mktemp("dispatch") / "dispatch"
    # The linker drops the sections of the operators' other functions, which would need all of the core.
    flags = ["-std=c++20", f"-I{CORE}", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
    sources = [PROGRAMS / "dispatch.cpp", *(CORE / source for source in SOURCES)]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)

    def names(problems, gpu):
        lines = "".join(problem.line(gpu) + "\n" for problem in problems)
        done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    return names


@pytest.mark.parametrize(
    "cases",
    [PRODUCTS, ATTENTIONS, GROUPED, GATED_LINEARS, LOGITS],
    ids=["matmul", "attention", "grouped_matmul", "gated_linear", "linear_cross_entropy"],
)
def test_the_tables_select_the_listed_kernels(kernels_of, cases):
    problems, on_h100, on_a100 = zip(*cases, strict=True)
    assert tuple(kernels_of(problems, H100)) == on_h100
    assert tuple(kernels_of(problems, A100)) == on_a100


@pytest.mark.parametrize(
    ("cases", "file"),
    [
        (PRODUCTS, "ops/products/matmul_dispatch.cpp"),
        (ATTENTIONS, "ops/attention/attention_dispatch.cpp"),
        (GROUPED, "ops/experts/grouped_dispatch.cpp"),
    ],
    ids=["matmul", "attention", "grouped_matmul"],
)
def test_each_kernel_is_chosen(cases, file):
    """At least one of the problems above selects it."""
    declared = set(re.findall(r'{K::\w+, "([^"]+)"', (CORE / file).read_text()))
    chosen = {name for _, *names in cases for name in names}
    assert declared == {re.sub(r"(swap-AB) .*", r"\1", name) for name in chosen}


CALLS = """
import torch, fusedops.torch as fo
from tests.operators.test_dispatch import Product, SUMS, WHOLE, relevant

def matrix(p, rows, columns, transposed):
    rows, columns = (columns, rows) if transposed else (rows, columns)
    shape = (p.batch,) * (p.batch > 1) + (rows, columns + p.pad)
    memory = torch.zeros(shape, dtype=getattr(torch, p.dtype), device="cuda")
    return memory[..., p.offset : p.offset + columns]

for p in relevant():
    a, b = matrix(p, p.m, p.k, p.transpose_a), matrix(p, p.k, p.n, p.transpose_b)
    if p.activation:
        fo.linear(a, b, activation="relu")
    elif p.result == SUMS:
        total = torch.zeros(p.m, p.n, device="cuda")
        fo.accumulate_matmul(total, a, b, transpose_a=bool(p.transpose_a), transpose_b=bool(p.transpose_b))
    else:
        fo.matmul(a, b, transpose_a=bool(p.transpose_a), transpose_b=bool(p.transpose_b))
"""
ATTENTION_CALLS = """
import torch, fusedops.torch as fo
from tests.operators.test_dispatch import ATTENTIONS

for p, *_ in ATTENTIONS:
    def rows(positions, heads):
        shape = (2, positions, heads, p.features)
        return torch.zeros(shape, dtype=getattr(torch, p.dtype), device="cuda", requires_grad=bool(p.backward))
    mask = torch.ones(p.queries, p.keys, dtype=torch.bool, device="cuda") if p.mask else None
    q, k, v = rows(p.queries, 2 * p.group), rows(p.keys, 2), rows(p.keys, 2)
    alibi = torch.ones(q.shape[2], device="cuda") if p.alibi else None
    options = {"dropout": 0.5 * p.dropout, "softcap": float(p.softcap), "seed": (1, 2)}
    bias = torch.ones(p.queries, p.keys, device="cuda") if p.bias else None
    y = fo.attention(q, k, v, mask=mask, alibi=alibi, bias=bias, **options)
    if p.backward:
        y.backward(torch.zeros_like(y))
"""


def relevant():
    """The products that are calls of operators."""
    return [p for p, *_ in PRODUCTS if p.result in (WHOLE, SUMS) and p.m]


def logged(code, device):
    """The logged calls of a program, without nested calls."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(device, FUSEDOPS_LOG="dispatch", TF_CPP_MIN_LOG_LEVEL="3"),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("fusedops: ")]


def facts(torch):
    gpu = torch.cuda.get_device_properties(0)
    has_sm90 = any(each.startswith("9.0") for each in FRAMEWORKS["torch"].build()["architectures"])
    return (
        gpu.major,
        gpu.minor,
        gpu.multi_processor_count,
        gpu.shared_memory_per_multiprocessor,
        int(gpu.major == 9 and has_sm90),
    )


def test_the_log_names_the_kernels_of_products(torch_gpu, kernels_of):
    gpu = facts(torch_gpu.torch)
    lines = logged(CALLS, "cuda")
    names = kernels_of(relevant(), gpu)
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert f" -> {name} (compute capability {gpu[0]}.{gpu[1]}, " in line


def test_the_log_names_the_kernels_of_attention(torch_gpu, kernels_of):
    gpu = facts(torch_gpu.torch)
    lines = [line for line in logged(ATTENTION_CALLS, "cuda") if "attention" in line]
    forward, backward = ([line for line in lines if ("_backward " in line) == is_backward] for is_backward in (0, 1))
    problems = [problem for problem, *_ in ATTENTIONS]
    assert len(forward) == len(problems)
    for problem, name in zip(problems, kernels_of(problems, gpu), strict=True):
        line = (backward if problem.backward else forward).pop(0)
        if problem.backward:
            forward.pop(0)
        assert f" -> {name} (compute capability {gpu[0]}.{gpu[1]}, " in line


GATED_CALLS = """
import torch, fusedops.torch as fo

x = torch.zeros(256, 64, dtype=torch.bfloat16, device="cuda")
memory = torch.zeros(2, 4096, 72, dtype=torch.bfloat16, device="cuda")
gate, up = memory[0, :, :64], memory[1, :, :64]
for weights in ((gate, up), (up, gate), (gate, gate), (gate, up.contiguous())):
    fo.gated_linear(x, *weights)
"""


def test_one_kernel_takes_weights_of_any_strides(torch_gpu):
    if not facts(torch_gpu.torch)[-1]:
        pytest.skip("the kernel needs compute capability 9.x")
    lines = logged(GATED_CALLS, "cuda")
    assert len(lines) == 4
    assert all(" -> sm90 gated tiles 128x64 (" in line for line in lines), lines


CODE = {
    "torch": """
import torch, fusedops.torch as fo
x = torch.ones(2, 3, device="{device}")
fo.axpby(2.0, x, x)
fo.softmax(x[:, :2], scale=0.5)
fo.gated_linear(x, x, x)
""",
    "tf": """
import tensorflow as tf, fusedops.tf as fo
with tf.device("{place}"):
    x = tf.ones([2, 3])
    fo.axpby(2.0, x, x)
    fo.softmax(x[:, :2], scale=0.5)
    fo.gated_linear(x, x, x)
""",
}


@pytest.mark.frameworks("torch", "tf")
def test_a_line_for_each_call(any_backend):
    device = any_backend.device
    code = CODE[any_backend.framework].format(device=device, place="CPU" if device == "cpu" else "GPU")
    axpby, softmax, gated = logged(code, device)
    number = "2" if any_backend.framework == "torch" else "float32 []"  # TensorFlow passes numbers as tensors
    assert axpby == f"fusedops: axpby a {number}, x float32 [2, 3], b float32 [2, 3] -> {device}"
    assert re.fullmatch(rf"fusedops: softmax x float32 \[2, 2\]( strides \[3, 1\])?, scale 0.5 -> {device}", softmax)
    kernel = "cpu" if device == "cpu" else "calls of linear and gated_act (compute capability "
    tensors = ", ".join(f"{name} float32 [2, 3]" for name in ("x", "gate_weight", "up_weight"))
    assert gated.startswith(f"fusedops: gated_linear {tensors}")
    assert f" -> {kernel}" in gated


def test_nothing_is_logged_by_default(torch_cpu):
    variables = {name: value for name, value in environment("cpu").items() if name != "FUSEDOPS_LOG"}
    for log_variables in ({}, {"FUSEDOPS_LOG": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", CODE["torch"].format(device="cpu")],
            env=variables | log_variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "fusedops: " not in done.stderr
