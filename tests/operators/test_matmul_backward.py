"""The gradients of matrix products as one operator: matrices read in place, unneeded gradients, errors.

Sums of small integers are exact in every dtype, so that any order and any kernel gives the same bits.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tests.helpers.specification import bad_calls
from tests.helpers.torch_layouts import LAYOUTS, compact, expanded, misaligned, rows_spaced_by_one, spaced_batches

TRANSPOSES = list(itertools.product((False, True), repeat=2))


def backward(backend, dc, a, b, **options):
    if backend.framework == "tf":
        from fusedops.tf.operators import OPERATORS

        return OPERATORS.matmul_backward(dc, a, b, **options)
    return backend.torch.ops.fusedops.matmul_backward(dc, a, b, **options)


def integers(random, *shape):
    return random.integers(-2, 3, shape).astype(np.float64)


def matrices(random, leading, m, k, n, transpose_a, transpose_b, shared):
    """Random dc, a and b."""
    a = integers(random, *leading, *((k, m) if transpose_a else (m, k)))
    b = integers(random, *(() if shared else leading), *((n, k) if transpose_b else (k, n)))
    return integers(random, *leading, m, n), a, b


def transposed(x, transpose):
    return x.swapaxes(-1, -2) if transpose else x


def expected(dc, a, b, transpose_a, transpose_b):
    """The expected gradients, from arrays or torch tensors."""
    da = dc @ transposed(b, transpose_b).swapaxes(-1, -2)
    db = transposed(a, transpose_a).swapaxes(-1, -2) @ dc
    if db.ndim > b.ndim:
        db = db.sum(tuple(range(db.ndim - b.ndim)))
    return transposed(da, transpose_a), transposed(db, transpose_b)


def check(torch_backend, tensors, transpose_a, transpose_b, label=""):
    """Compares with products of the same numbers in float64."""
    torch, dtype = torch_backend.torch, tensors[0].dtype
    got = backward(torch_backend, *tensors, transpose_a=transpose_a, transpose_b=transpose_b)
    exact = expected(*(x.double() for x in tensors), transpose_a, transpose_b)
    for name, x, y in zip(("da", "db"), got, exact, strict=True):
        assert x.is_contiguous()
        assert torch.equal(x, y.to(dtype)), f"{label}: {name}"


def side_by_side(x):
    """Columns of unit stride that run through all matrices: one transposed matrix."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)


def interleaved(x):
    """The first rows of all matrices, then the second ones."""
    return x.movedim(-2, 0).contiguous().movedim(0, -2)


@pytest.mark.parametrize("layout", [compact, side_by_side, interleaved, *LAYOUTS], ids=lambda layout: layout.__name__)
def test_every_layout(torch_backend, dtype, layout, random):
    """One tensor at a time has the layout, then all of them."""
    for (ta, tb), (leading, shared) in itertools.product(
        TRANSPOSES, (((), False), ((3,), False), ((3,), True), ((2, 3), True))
    ):
        for m, k, n in ((9, 8, 4), (1, 8, 3), (6, 1, 5), (5, 7, 1)):
            arrays = matrices(random, leading, m, k, n, ta, tb, shared)
            tensors = [torch_backend.tensor(x, dtype) for x in arrays]
            for chosen in (range(3), (0,), (1,), (2,)):
                moved = [layout(x) if i in chosen else x for i, x in enumerate(tensors)]
                check(torch_backend, moved, ta, tb, f"{leading} {m}x{k}x{n} {ta} {tb} {shared} {list(chosen)}")


@pytest.mark.parametrize("layout", [compact, expanded, spaced_batches, rows_spaced_by_one, misaligned])
@pytest.mark.parametrize("sizes", [(1024, 1024, 64), (1000, 72, 64), (1024, 2048, 1024)], ids=["da", "slabs", "both"])
def test_one_b_for_large_matrices(torch_gpu, dtype, sizes, layout, random):
    """Products in large tiles, with b as the left operand of many, and in row chunks: sums over all matrices."""
    for ta, tb in TRANSPOSES:
        arrays = matrices(random, (3,), *sizes, ta, tb, True)
        check(torch_gpu, [layout(torch_gpu.tensor(x, dtype)) for x in arrays], ta, tb, f"{ta} {tb}")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
@pytest.mark.parametrize("leading", [(), (2,), (0,)])
def test_without_elements(torch_backend, sizes, leading, shared, random):
    for ta, tb in TRANSPOSES:
        arrays = matrices(random, leading, *sizes, ta, tb, shared)
        check(torch_backend, [torch_backend.tensor(x, "float32") for x in arrays], ta, tb)


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_not_needed(any_backend, shared, random):
    """The other gradient is unaffected; da does not need a."""
    for ta, tb in TRANSPOSES:
        arrays = matrices(random, (3,), 5, 4, 7, ta, tb, shared)
        dc, a, b = (any_backend.tensor(x, "float32") for x in arrays)
        options = {"transpose_a": ta, "transpose_b": tb}
        da, db = expected(*arrays, ta, tb)
        for given, needs, results in (
            (None, (True, False), (da, np.empty(0))),
            (a, (True, False), (da, np.empty(0))),
            (a, (False, True), (np.empty(0), db)),
            (None, (False, False), (np.empty(0), np.empty(0))),
        ):
            got = backward(any_backend, dc, given, b, need_da=needs[0], need_db=needs[1], **options)
            for x, y in zip(got, results, strict=True):
                np.testing.assert_array_equal(any_backend.to_numpy(x), y.astype(np.float32))


BAD = bad_calls(
    "matmul_backward",
    {"dc": "float32[2, 4]", "a": "float32[2, 3]", "b": "float32[3, 4]"},
    {
        "a must be a tensor if need_db is true; got nothing": None,
        "dc must be float64, float32, float16 or bfloat16; got int32": {
            "dc": "int32[2, 4]",
            "a": None,
            "b": "int32[3, 4]",
            "need_db": False,
        },
        "dc must have at least 2 dimensions; got shape [4]": {"dc": "float32[4]", "a": None, "need_db": False},
        "b must have dc's dtype, float32; got float64": "float64[3, 4]",
        "a must have dc's dtype, float32; got float64": "float64[2, 3]",
        "b must have 4 columns to multiply dc of shape [2, 4]; got shape [3, 5]": "float32[3, 5]",
        "b must have 4 rows to multiply dc of shape [2, 4]; got shape [3, 5]": {
            "b": "float32[3, 5]",
            "transpose_b": True,
        },
        "b must have two dimensions or dc's leading dimensions, [6]; got shape [5, 3, 4]": {
            "dc": "float32[6, 2, 4]",
            "a": "float32[6, 2, 3]",
            "b": "float32[5, 3, 4]",
        },
        "a must have shape [2, 3], as dc and b have it; got [3, 2]": "float32[3, 2]",
        "a must have shape [3, 2], as dc and b have it; got [2, 3]": {"transpose_a": True},
        "a must have shape [6, 2, 3], as dc and b have it; got [2, 3]": {"dc": "float32[6, 2, 4]"},
    },
)


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_errors(any_backend, bad):
    tensors = [x if x is None else any_backend.from_numpy(np.ones(x.shape, x.dtype)) for x in bad.inputs.values()]
    with pytest.raises(any_backend.errors, match=re.escape(bad.sentence)):
        backward(any_backend, *tensors, **bad.options)


@pytest.mark.parametrize("known", ["none", "ranks", "a and dc", "b and dc"])
def test_graphs_of_unknown_shapes(tf_cpu, known, random):
    """The graph infers the same result shapes from every source of known shapes."""
    tf, arrays = tf_cpu.tf, matrices(random, (3,), 5, 4, 7, True, False, True)
    known_shapes = [{"none": None, "ranks": [None] * x.ndim}.get(known, list(x.shape)) for x in arrays]
    known_shapes[{"a and dc": 2, "b and dc": 1}.get(known, 0)] = None if " " in known else known_shapes[0]

    @tf.function(input_signature=[tf.TensorSpec(shape) for shape in known_shapes])
    def compute(dc, a, b):
        results = backward(tf_cpu, dc, a, b, transpose_a=True)
        shapes = [x.shape.as_list() if x.shape.rank is not None else None for x in results]
        assert (
            shapes
            == {
                "none": [None, None],
                "ranks": [[None] * 3, [None] * 2],
                "a and dc": [[3, 4, 5], None],
                "b and dc": [[3, 4, 5], [4, 7]],
            }[known]
        )
        return results

    got = compute(*(tf.constant(x, tf.float32) for x in arrays))
    for x, y in zip(got, expected(*arrays, True, False), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("needed", ["da", "db"])
def test_vmap_of_one_gradient(torch_backend, needed, random):
    """The other gradient has no elements in each call."""
    torch = torch_backend.torch
    dc, a, b = (torch_backend.tensor(x, "float32") for x in matrices(random, (2, 3), 5, 4, 7, False, False, False))
    options = {f"need_{name}": name == needed for name in ("da", "db")}

    def call(dc, a, b):
        return backward(torch_backend, dc, a, b, **options)

    got = torch.vmap(torch.vmap(call))(dc, a, b)
    for name, x, like in zip(("da", "db"), got, (a, b), strict=True):
        assert x.shape == (like.shape if name == needed else (2, 3, 0))
    index = ("da", "db").index(needed)
    assert torch.equal(got[index], call(dc, a, b)[index])
