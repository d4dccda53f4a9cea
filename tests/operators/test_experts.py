"""grouped_matmul and experts: offsets, experts without tokens, dtypes of weights, determinism under threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward
from tests.specifications import experts as specification
from tests.specifications import grouped_matmul


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ((1, 2, 3), "offsets must begin with 0; got 1 at position 0"),
        ((0, 3, 2), "offsets must ascend; got 2 at position 2"),
        ((0, 3, 5), "offsets must end with at most 4, the rows of x; got 5 at position 2"),
    ],
)
def test_offsets_out_of_order(any_backend, random, offsets, sentence):
    """An error on a CPU, before anything is written; on a GPU the running maximum, clamped to the rows."""
    x, weights = (any_backend.tensor(random.normal(size=shape), "float64") for shape in ((4, 3), (2, 5, 3)))
    given = any_backend.from_numpy(np.array(offsets, np.int32))
    if any_backend.device != "cuda":
        with pytest.raises(any_backend.errors, match=sentence):
            any_backend.call("grouped_matmul", {"x": x, "weights": weights, "offsets": given})
        return
    allowed = any_backend.from_numpy(np.minimum(np.maximum.accumulate(offsets), 4).astype(np.int32))
    (found,) = any_backend.call("grouped_matmul", {"x": x, "weights": weights, "offsets": given})
    (expected,) = any_backend.call("grouped_matmul", {"x": x, "weights": weights, "offsets": allowed})
    np.testing.assert_array_equal(any_backend.to_numpy(found), any_backend.to_numpy(expected))
    assert not any_backend.to_numpy(found)[: offsets[0]].any()  # rows without a group


def test_router_weights_in_float32(any_backend, random):
    """They are not rounded to 16 bits: both slots of a token have one expert, and weights that cancel in bfloat16."""
    sample = specification.call(random, (12, 6), biases=True)
    inputs = any_backend.tensors(sample, "bfloat16")
    inputs["index"] = any_backend.from_numpy(np.repeat(np.arange(12)[:, None] % 4, 2, 1))

    def results(*weights):
        inputs["weight"] = any_backend.tensor(np.tile(weights, (12, 1)), "float32")
        (y,), gradients = any_backend.gradients("experts", inputs, sample.options, ("weight",))
        assert any_backend.dtype_of(y) == "bfloat16" and any_backend.dtype_of(gradients["weight"]) == "float32"
        return any_backend.to_numpy(y).astype(np.float64)

    np.testing.assert_allclose(results(1 + 2**-12, -1.0), 2**-12 * results(1.0, 0.0), rtol=2**-7)


def test_a_token_without_an_expert_reads_nothing(any_backend, random):
    """Neither NaN in such a token nor an infinite weight of such a slot reaches a result."""
    sample = specification.call(random, (4, 6), experts=3)
    values = dict(sample.inputs)
    values["index"] = np.array([[0, 7], [-1, 3], [2, 1], [0, 0]])
    values["weight"][0, 1] = np.inf
    values["x"][1] = np.nan
    inputs = any_backend.tensors(type(sample)(values), "float64")
    (y,), gradients = any_backend.gradients("experts", inputs, {}, ("x", "weight", "gate_up", "down"))
    found = [any_backend.to_numpy(v) for v in (y, *gradients.values())]
    assert all(np.isfinite(v).all() for v in found)
    assert not found[0][1].any() and not found[1][1].any() and not found[2][1].any()


def test_gates_that_were_not_saved_are_computed_again(torch_backend, random):
    torch = torch_backend.torch
    sample = specification.call(random, (12, 6), biases=True)
    given = torch_backend.leaves(torch_backend.tensors(sample, "float64"), sample.floating)
    results = []
    for keep in (True, False):
        y, z = torch.ops.fusedops.experts(*given.values(), keep=keep)
        assert z.shape == ((12, 2, 6) if keep else (0,))
        results.append(torch.autograd.grad(y.square().sum(), [given[name] for name in sample.floating]))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# Sizes of groups, rows, in and out: around tiles of 64 and 128 rows and of 256 columns, and more of k than a ring
# holds. Rows of a multiple of 8 elements are aligned for the kernels of 9.x.
TILES = {
    "several-groups": ((64, 0, 129, 1, 65), 300, 328, 264),
    "one-group": ((200,), 200, 72, 8),
    "no-group": ((0, 0), 150, 64, 520),
    "misaligned": ((127, 3), 130, 67, 131),
    "more-tiles-than-blocks": ((1, 65, 0, 2) * 48, 3300, 136, 264),
    "more-tiles-than-pairs-of-blocks": ((40, 129, 0, 2) * 48, 8300, 136, 264),
    "more-groups-than-threads": ((0, 1, 2) * 500, 1600, 16, 24),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("tiles", TILES)
def test_tiles_of_groups(torch_gpu, dtype, tiles, random):
    for transpose in (True, False):
        sizes, rows, columns, out = TILES[tiles]
        sample = grouped_matmul.call(random, sizes, rows, columns, out, transpose)
        inputs = torch_gpu.tensors(sample, dtype)
        check_forward(torch_gpu, grouped_matmul.SPECIFICATION, sample, inputs)
        check_backward(torch_gpu, grouped_matmul.SPECIFICATION, sample, inputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("experts", "tokens"), [(2, 200), (150, 200), (150, 6000)])
def test_tiles_of_experts(torch_gpu, dtype, interleaved, transpose, experts, tokens, random):
    """For the kernel of 9.x with a fused gate: experts of more rows and units than a tile has, or more tiles than a GPU
    has blocks, or pairs of them."""
    sizes = {"size": 136, "out": 264, "per_token": 3, "experts": experts}
    options = {"biases": True, "limit": 50.0, "interleaved": interleaved, "transpose_weight": transpose}
    sample = specification.call(random, (tokens, 72), **sizes, **options)
    inputs = torch_gpu.tensors(sample, dtype)
    check_forward(torch_gpu, specification.SPECIFICATION, sample, inputs)
    check_backward(torch_gpu, specification.SPECIFICATION, sample, inputs)
