"""Matrix products: edges of tiles, and products with a single row or column."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import python


def product(backend, dtype, a, b):
    tensors = {name: backend.tensor(x, dtype) for name, x in {"a": a, "b": b}.items()}
    return backend.to_numpy(backend.call("matmul", tensors)[0])


@pytest.mark.parametrize("shape", [(13, 40), (1, 40), (40, 1), (130, 70)])
def test_negative_zeros_reach_the_edges(any_backend, dtype, shape):
    """Every element underflows to -0 in the same way, at any place in a tile."""
    rows, columns = shape
    tiny = 1e-200 if dtype == "float64" else 1e-30 if dtype != "float16" else 6e-8
    c = product(any_backend, dtype, np.full((rows, 1), -tiny), np.full((1, columns), tiny))
    assert np.signbit(c).all() or not np.signbit(c).any()


def test_vectors_by_transposed_matrices(torch_cpu, dtype, random):
    """On a CPU the layout of the matrix changes no bit."""
    matrix = torch_cpu.tensor(random.standard_normal((70, 1100)), dtype)
    other = matrix.t().contiguous().t()
    vector = torch_cpu.tensor(random.standard_normal((1100, 1)), dtype)
    for a, b, same_a, same_b in ((matrix, vector, other, vector), (vector.t(), matrix.t(), vector.t(), other.t())):
        expected = torch_cpu.call("matmul", {"a": a, "b": b})[0]
        found = torch_cpu.call("matmul", {"a": same_a, "b": same_b})[0]
        assert_same_bits(torch_cpu.to_numpy(found), torch_cpu.to_numpy(expected))


def test_the_last_rows_of_a_batch(torch_cpu, dtype, random):
    """One row of each matrix times a shared matrix gives the bits of contiguous rows."""
    h = torch_cpu.tensor(random.standard_normal((12, 8, 100)), dtype)
    w = torch_cpu.tensor(random.standard_normal((100, 10)), dtype)
    expected = torch_cpu.call("matmul", {"a": h[:, -1:].contiguous(), "b": w})[0]
    assert_same_bits(
        torch_cpu.to_numpy(torch_cpu.call("matmul", {"a": h[:, -1:], "b": w})[0]), torch_cpu.to_numpy(expected)
    )


# Products of few tiles: one row, one tile, partial tiles, split K, a long edge.
FEW_TILES = [(1, 512, 512), (64, 1024, 4096), (200, 264, 1000), (520, 16, 600), (1000, 1024, 520), (64, 17_000, 2056)]
# Each tile and each split count that matmul_tiles.cpp selects on 9.x, and the neighbouring kernels; at edges.
FEW_TILES += [(70, 72, 136), (70, 72, 2056), (70, 2008, 2056), (130, 520, 2056), (130, 1032, 2056), (180, 1032, 2056)]
FEW_TILES += [(1000, 72, 2056), (1000, 1032, 136), (256, 3000, 8200)]
FEW_TILES += [(rows, 8200, 136) for rows in (180, 200, 300, 380, 500, 620, 1000)]
# Persistent blocks in one wave and in several, single and in clusters of two that share columns or rows.
FEW_TILES += [(296, 3000, 136), (448, 3000, 128), (350, 3000, 136), (900, 2056, 128), (700, 3000, 136)]
FEW_TILES += [(700, 4096, 128), (448, 8192, 128), (448, 8192, 136), (1000, 4104, 128), (1000, 4104, 136)]
FEW_TILES += [(1000, 4096, 136), (1000, 3000, 128), (900, 4104, 136), (2000, 2056, 128), (2000, 1032, 136)]
FEW_TILES += [(296, 4104, 136), (296, 4096, 136), (1304, 1032, 136), (1304, 2056, 136), (1304, 3000, 128)]
FEW_TILES += [(1304, 3000, 136), (1304, 4096, 520)]
# The same with a transposed, which TMA reads if its contiguous rows are a multiple of 8.
FEW_TILES += [(8, 520, 520), (56, 1032, 2056), (136, 520, 2056), (136, 1032, 2056), (184, 8200, 136), (304, 8200, 136)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", FEW_TILES, ids=str)
@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
def test_few_tiles(torch_gpu, dtype, shape, offset, random):
    """Each layout, and an epilogue, against float64: each sum errs by a rounding in float32 for each product."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    m, n, k = shape

    def matrix(rows, columns):
        return torch_gpu.tensor(random.standard_normal((rows, columns + offset)), dtype)[:, offset:]

    for a in (matrix(m, k), matrix(k, m).t()):
        for b in (matrix(k, n), matrix(n, k).t()):
            got = fo.matmul(a, b)
            a64, b64 = a.double(), b.double()
            exact = a64 @ b64
            rounding = torch.finfo(a.dtype).eps / 2 * exact.abs() + torch.finfo(a.dtype).tiny
            limit = rounding * 1.01 + k * 2**-24 * (a64.abs() @ b64.abs())
            assert ((got.double() - exact).abs() <= limit).all()
            assert torch.equal(got, fo.matmul(a, b))
            if a.stride(1) == 1:
                bias = torch_gpu.tensor(random.standard_normal(n), dtype)
                y = fo.linear(a, b, bias, activation="relu", transpose_weight=False)
                z = exact + bias.double()
                wide = limit + torch.finfo(a.dtype).eps * z.abs() + k * 2**-24 * bias.double().abs()
                assert ((y.double() - z.relu()).abs() <= wide).all()


# Tiles of 32 rows and slices of k in float32, and both sides of each threshold; tiles of 32 x 32 and larger in float64.
SMALL = [(64, 64, 64), (192, 704, 100), (192, 705, 100), (33, 65, 1003), (1056, 512, 40), (1088, 512, 40)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [*SMALL, (768, 704, 33), (2, 300, 5), (300, 3, 31)], ids=str)
@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
def test_small_tiles(torch_gpu, dtype, shape, offset, random):
    """Each layout, two matrices in a batch, a total and an epilogue: each sum errs by a rounding for each product."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    m, n, k = shape

    def matrix(*sizes):
        return torch_gpu.tensor(random.standard_normal((*sizes[:-1], sizes[-1] + offset)), dtype)[..., offset:]

    for a in (matrix(2, m, k), matrix(2, k, m).mT):
        for b in (matrix(2, k, n), matrix(2, n, k).mT):
            exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            limit = (2 * k + 2) * torch.finfo(a.dtype).eps * (scale + 1)
            got = fo.matmul(a, b)
            assert ((got.double() - exact).abs() <= limit).all()
            assert torch.equal(got, fo.matmul(a, b))
            if offset:  # the alignment changes no bit
                assert torch.equal(got, fo.matmul(*(x.clone() for x in (a, b))))
            total = torch.ones(m, n, dtype=a.dtype, device=a.device)
            fo.accumulate_matmul(total, a[1], b[1])
            assert ((total.double() - 1 - exact[1]).abs() <= limit[1]).all()
            if a.stride(-1) == 1:
                bias = torch_gpu.tensor(random.standard_normal(n), dtype)
                y = fo.linear(a[0], b[0], bias, activation="relu", transpose_weight=False)
                wide = limit[0] + 2 * torch.finfo(a.dtype).eps * bias.double().abs()
                assert ((y.double() - (exact[0] + bias.double()).relu()).abs() <= wide).all()


WIDER = [(70, 1003, 264), (515, 130, 1000), (13, 21, 520), (2051, 771, 1003)]


@pytest.mark.parametrize("size", [*WIDER, (50_257, 72, 1000), (72, 50_257, 1000)], ids=str)
def test_parts_of_wider_matrices(torch_gpu, size, random):
    """Slices of rows and columns that are not a multiple of 8, with aligned lines.

    TMA reads most of them; a copy would take longer than the remainder.
    """
    fo = torch_gpu.functions
    m, n, k = size
    a = torch_gpu.tensor(random.standard_normal((k, m + 15 & ~7)), "bfloat16")[:, :m].t()
    b = torch_gpu.tensor(random.standard_normal((k, n + 15 & ~7)), "bfloat16")[:, :n]
    for rows in (a, a.contiguous()):
        exact = rows.double() @ b.double()
        limit = 0.505 * 2**-7 * exact.abs() + k * 2**-24 * (rows.double().abs() @ b.double().abs()) + 1e-30
        assert ((fo.matmul(rows, b).double() - exact).abs() <= limit).all()


# One row, a few, one tile, several; split K; more of a, and of a and b, than one copy holds.
MISALIGNED = [(1, 1003, 1005), (9, 520, 1005), (65, 67, 4097), (257, 1003, 770), (1001, 333, 1005), (700, 3001, 1003)]
MISALIGNED += [(1, 70_001, 1005), (12_000, 72, 16_389), (8300, 8400, 16_389), (264, 72, 300_001)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", MISALIGNED, ids=str)
@pytest.mark.parametrize("odd", ["ab", "a", "b"])
def test_misaligned_lines(torch_gpu, dtype, size, odd, random):
    """Copies with aligned lines, of one matrix or of both, in pieces if they are large. One row needs no copies."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    m, n, k = size
    seeds = {name: int(random.integers(2**30)) for name in "ab"}
    lines = {"a": m, "b": n}
    copied = sum(min(lines[name] * (k + 63 & ~63) * 2, 2**26) for name in odd) if m > 4 else 0  # at least

    def matrix(name, rows, columns):
        stride = columns | 1 if name in odd else columns + 7 & ~7
        generator = torch.Generator("cuda").manual_seed(seeds[name])
        whole = torch.randn(rows, stride, device="cuda", generator=generator)
        return whole.to(getattr(torch, dtype))[:, :columns]

    for a in (matrix("a", m, k), matrix("a", k, m).t()):
        for b in (matrix("b", k, n), matrix("b", n, k).t()):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            got = fo.matmul(a, b)
            taken = torch.cuda.max_memory_allocated() - before - got.nbytes
            assert copied <= taken <= 2 * 2**27 + 2**25  # and sums of splits
            a64, b64 = a.double(), b.double()
            exact = a64 @ b64
            limit = a64.abs_() @ b64.abs_()
            limit *= k * 2**-24
            limit += torch.finfo(a.dtype).eps * 0.505 * exact.abs() + torch.finfo(a.dtype).tiny
            assert ((got.double() - exact).abs_() <= limit).all()
            assert torch.equal(got, fo.matmul(a, b))


# Rows, columns and depth. Lines along k: one split, splits in a cluster, splits added by a second kernel; the same for
# lines along n. The last depth is below the least one.
GEMVS = [(1, 4096, 4096), (3, 4097, 300), (1, 1003, 4099), (2, 130, 70_001), (4, 4104, 1030), (1, 20_001, 1000)]
GEMVS += [(1, 3, 70_000), (1, 1, 5000), (4, 4, 257), (4, 1003, 255)]


@pytest.mark.parametrize("size", GEMVS, ids=str)
def test_few_rows_or_columns(torch_gpu, dtype, size, random):
    """Every layout and alignment of both operands, between elements that are no numbers; an epilogue; sums.

    Neither an alignment nor the layout of the few rows changes a bit of the sums."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    rows, columns, k = size
    element, total_type = (getattr(torch, dtype), torch.float64 if dtype == "float64" else torch.float32)
    unit = 2**-52 if dtype == "float64" else 2**-24  # the float64 reference errs, too

    def layouts(matrix):
        """Lines along the last dimension, then along the first one; each aligned, then misaligned."""
        for lines in (matrix, matrix.t()):
            width = lines.shape[1]
            for offset, stride in ((0, (width + 8) & ~7), (1, (width + 8) | 1)):
                whole = torch.full((lines.shape[0], stride), torch.nan, dtype=element, device="cuda")
                view = whole[:, offset : offset + width]
                view.copy_(lines)
                yield view if lines is matrix else view.t()

    a0, b0 = (torch_gpu.tensor(random.standard_normal(shape), dtype) for shape in ((rows, k), (k, columns)))
    bias = torch_gpu.tensor(random.standard_normal(columns), dtype)
    exact = a0.double() @ b0.double()
    sums = k * unit * (a0.double().abs() @ b0.double().abs())

    def check(got, exact, limit):
        numbers = torch.finfo(got.dtype)
        assert ((got.double() - exact).abs() <= limit + 0.505 * numbers.eps * exact.abs() + numbers.tiny).all()

    expected = None
    for i, b in enumerate(layouts(b0)):
        totals = []
        for a in layouts(a0):
            got = fo.matmul(a, b)
            check(got, exact, sums)
            check(fo.matmul(b.t(), a.t()).t(), exact, sums)
            assert torch.equal(got, fo.matmul(a, b))
            totals.append(torch.ones(rows, columns, dtype=total_type, device="cuda"))
            fo.accumulate_matmul(totals[-1], a, b)
            check(totals[-1], exact + 1, sums + unit * (exact.abs() + 1))
            turned = torch.ones(columns, rows, dtype=total_type, device="cuda")
            fo.accumulate_matmul(turned, b.t(), a.t())
            check(turned.t(), exact + 1, sums + unit * (exact.abs() + 1))
            wide = sums + 2 * unit * (exact.abs() + bias.double().abs())
            if a.stride(1) == 1:
                leaf = bias.detach().requires_grad_()
                y = fo.linear(a, b, leaf, activation="relu", transpose_weight=False)
                check(y, (exact + bias.double()).relu(), wide)
                (dbias,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
                assert torch.equal(dbias, (y > 0).sum(0).to(element))
            if b.stride(0) == 1:
                y = fo.linear(b.t(), a.t(), bias[:rows], activation="relu", transpose_weight=False)
                of_rows = bias[:rows].double()[:, None]
                check(y.t(), (exact + of_rows).relu(), sums + 2 * unit * (exact.abs() + of_rows.abs()))
        expected = totals[0] if i % 2 == 0 else expected
        assert k < 256 or all(torch.equal(expected, other) for other in totals)


def test_misaligned_lines_with_an_epilogue(torch_gpu, random):
    """Slices of c use their slices of the bias and of the tensors saved for the backward."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    x, weight = (torch_gpu.tensor(random.standard_normal((4100, 16_389)), "bfloat16") for _ in "xw")
    bias = torch_gpu.tensor(random.standard_normal(4100) * 100, "bfloat16").requires_grad_()
    y = fo.linear(x, weight, bias, activation="relu")
    z = x.double() @ weight.double().t() + bias.double()
    limit = 16_389 * 2**-24 * (x.double().abs() @ weight.double().abs().t() + bias.double().abs()) + 2**-8 * z.abs()
    assert ((y.double() - z.relu()).abs() <= limit).all()
    (dbias,) = torch.autograd.grad(y, bias, torch.ones_like(y))
    assert ((dbias.double() - (z > 0).sum(0)).abs() <= 2**-8 * 4100 + (z.abs() <= limit).sum(0)).all()


@pytest.mark.parametrize("shape", [(3, 130, 515, 69), (70, 1001, 1003, 64)], ids=str)
@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_misaligned_batches(torch_gpu, shape, shared, random):
    """Large batches are copied a few matrices at a time; a shared matrix is copied once."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    batch, m, k, n = shape
    a, b = (torch.randn(batch, *size, device="cuda").bfloat16() for size in ((m, k), (k, n)))
    if shared == "a":
        a = a[:1].expand(batch, m, k)
    if shared == "b":
        b = b[0]
    exact = a.double() @ b.double()
    limit = 0.505 * 2**-7 * exact.abs() + k * 2**-24 * (a.double().abs() @ b.double().abs()) + 1e-30
    turned = [(x.mT.contiguous().mT, x) if x.stride(0) or x.dim() == 2 else (x, x) for x in (a, b)]
    for left in turned[0]:
        for right in turned[1]:
            got = fo.matmul(left, right)
            assert ((got.double() - exact).abs() <= limit).all()
            assert torch.equal(got, fo.matmul(left, right))


@pytest.mark.parametrize("case", ["most of a", "nothing"])
def test_copies_and_operands_read_in_place(torch_gpu, case):
    """TMA reads most of a, and b is copied; or only b's first address is misaligned, and nothing is copied."""
    torch, fo = torch_gpu.torch, torch_gpu.functions

    def rows(count, stride, columns, offset=0):
        return torch.randn(count * stride + offset, device="cuda").bfloat16()[offset:].view(count, stride)[:, :columns]

    if case == "nothing":
        a, b = rows(130, 1001, 1000), rows(1000, 1008, 1003, offset=1)
    else:
        a, b = rows(1000, 50_264, 50_257).t(), rows(1000, 73, 73)
    exact = a.double() @ b.double()
    limit = 0.505 * 2**-7 * exact.abs() + 1000 * 2**-24 * (a.double().abs() @ b.double().abs()) + 1e-30
    assert ((fo.matmul(a, b).double() - exact).abs() <= limit).all()


def test_backward_alone_in_its_thread(torch_gpu):
    """Autograd's thread has no CUDA context yet, which creating TMA descriptors needs."""
    code = """
import torch, fusedops.torch as fo
x, w = (torch.ones(n, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True) for n in (128, 512))
y, dy = fo.matmul(x, w), torch.ones(128, 512, device="cuda", dtype=torch.bfloat16)
y.backward(dy)
print(x.grad.sum().item())
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 128 * 512 * 512


# Up to 64 rows, the order of sums follows from columns and depth alone; 65 is beyond. Columns and depths divide no
# tile.
FEW_ROWS = [1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [(4096, 4096), (1000, 4104), (1003, 520), (8, 64), (264, 72), (17_000, 72)], ids=str)
@pytest.mark.parametrize("transpose", [False, True], ids=["in-out", "out-in"])
def test_few_rows(torch_gpu, dtype, size, transpose, random):
    """Against float64 for each number of rows; up to 64, the sm90 kernel gives a row the same bits at any number of
    rows."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    n, k = size
    b = torch_gpu.tensor(random.standard_normal((n, k) if transpose else (k, n)), dtype)
    a = torch_gpu.tensor(random.standard_normal((FEW_ROWS[-1], k)), dtype)
    bias = torch_gpu.tensor(random.standard_normal(n), dtype)
    a64, b64 = a.double(), b.double().t() if transpose else b.double()
    exact, eps = a64 @ b64, torch.finfo(a.dtype).eps
    limit = 0.505 * eps * exact.abs() + torch.finfo(a.dtype).tiny + k * 2**-24 * (a64.abs() @ b64.abs())
    is_one_kernel = torch.cuda.get_device_capability()[0] == 9 and b.shape[-1] % 8 == 0
    alone = torch.cat([fo.matmul(a[i : i + 1], b, transpose_b=transpose) for i in range(64)])
    for rows in FEW_ROWS:
        got = fo.matmul(a[:rows], b, transpose_b=transpose)
        assert ((got.double() - exact[:rows]).abs() <= limit[:rows]).all()
        if rows <= 64 and is_one_kernel:
            assert torch.equal(got, alone[:rows])
        y = fo.linear(a[:rows], b, bias, activation="relu", transpose_weight=transpose)
        z = exact[:rows] + bias.double()
        wide = limit[:rows] + eps * z.abs() + k * 2**-24 * bias.double().abs()
        assert ((y.double() - z.relu()).abs() <= wide).all()


def test_few_rows_in_place(torch_gpu, random):
    """Rows and a weight that are slices of larger tensors, and rows with several leading dimensions."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    whole = torch_gpu.tensor(random.standard_normal((3, 5, 1024)), "bfloat16")
    weight = torch_gpu.tensor(random.standard_normal((300, 1024)), "bfloat16")
    x, w = whole[..., 256:768], weight[8:208, 256:768]
    expected = fo.matmul(x.contiguous().flatten(0, 1), w.contiguous(), transpose_b=True)
    assert torch.equal(fo.linear(x, w).flatten(0, 1), expected)
    assert torch.equal(fo.matmul(x.flatten(0, 1), w.t()), expected)
    assert torch.equal(fo.matmul(x, w.t()).flatten(0, 1), expected)


@pytest.mark.parametrize("scale", [1.0, 1e-19, 1e-38])
def test_bfloat16_on_a_cpu(torch_cpu, random, scale):
    """The float32 product, rounded, whatever kernel the processor has for bfloat16. The smaller scales make sums and
    elements subnormal."""
    torch, fo = torch_cpu.torch, torch_cpu.functions
    for m, n, k in ((130, 70, 515), (12, 32, 2), (13, 16, 1), (3, 33, 258)):
        for transpose_a, transpose_b in itertools.product((False, True), repeat=2):
            shapes = (k, m) if transpose_a else (m, k), (n, k) if transpose_b else (k, n)
            a, b = (torch.as_tensor(scale * random.standard_normal(shape)).bfloat16() for shape in shapes)
            b[b.abs() < scale] = 0
            options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
            expected = fo.matmul(a.float(), b.float(), **options).bfloat16()
            assert expected.any() or scale < 1e-30
            assert torch.equal(fo.matmul(a, b, **options), expected)
            ones = torch.ones_like(b)
            assert torch.equal(fo.matmul(a, ones, **options), fo.matmul(a.float(), ones.float(), **options).bfloat16())
