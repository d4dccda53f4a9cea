"""Operators over rows: any length, values that overflow, empty rows, long sums."""

from __future__ import annotations

import itertools
import subprocess

import numpy as np
import pytest

from tests.helpers.numerics import assert_accurate, assert_same_bits, reference_dtype
from tests.helpers.rows import BY_ROWS, LENGTHS, check, named, rows, with_exact_sum, with_x
from tests.helpers.running import ROOT, compiled
from tests.helpers.specification import Sample, Specification, pairwise


def vectors(spec: Specification, sample: Sample) -> list[str]:
    """The parameters whose gradients are sums over rows."""
    return [name for name in spec.differentiable(sample) if name in spec.parameters and sample.inputs[name].ndim == 1]


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lengths(any_backend, spec, columns, dtype, random):
    check(any_backend, spec, rows(spec, 3, columns, random), dtype)


@pytest.mark.parametrize("spec", [spec for spec in BY_ROWS if spec.parameters], ids=str)
@pytest.mark.parametrize("columns", LENGTHS)
def test_lengths_with_float32_parameters(any_backend, spec, columns, random):
    check(any_backend, spec, rows(spec, 2, columns, random), "bfloat16", narrow=True)


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
def test_any_of_the_gradients(any_backend, spec, random):
    """Each gradient has the same bits in every combination of requested gradients."""
    sample = rows(spec, 37, 72, random)
    inputs = any_backend.tensors(sample, "float32")
    names = spec.differentiable(sample)
    _, expected = any_backend.gradients(spec.name, inputs, sample.options, names)
    for count in range(1, len(names) + 1):
        for wanted in itertools.combinations(names, count):
            _, got = any_backend.gradients(spec.name, inputs, sample.options, wanted)
            assert tuple(got) == wanted
            for name in wanted:
                label = f"{name} of {wanted}"
                assert_same_bits(any_backend.to_numpy(got[name]), any_backend.to_numpy(expected[name]), label)


@named("softmax", "cross_entropy")
@pytest.mark.parametrize("columns", [2, 33, 1000, 65_536])
def test_large_logits(any_backend, spec, columns, dtype, random):
    """Logits around ±1e4: no overflow, and no loss of precision between close ones."""
    sample = rows(spec, 6, columns, random)
    x = 1e4 * random.choice([-1.0, 1.0], size=(6, columns))
    x[2:4] = 1e4 + random.standard_normal((2, columns))
    x[4:] = -1e4 + random.standard_normal((2, columns))
    check(any_backend, spec, with_x(sample, x), dtype)


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
@pytest.mark.parametrize("columns", [1, 33, 4097])
def test_rows_of_zeros(any_backend, spec, columns, dtype, random):
    sample = rows(spec, 4, columns, random)
    check(any_backend, spec, with_x(sample, np.zeros_like(next(iter(sample.inputs.values())))), dtype)


WITH_VECTORS = [spec for spec in BY_ROWS if vectors(spec, rows(spec, 2, 3, np.random.default_rng(0)))]
MANY = 250_000


@pytest.mark.parametrize("spec", WITH_VECTORS, ids=str)
@pytest.mark.parametrize("values", ["random", "constant"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_many_rows(any_backend, spec, values, dtype, random):
    """Within the error of a pairwise sum in float32, also if all terms are rounded in the same direction."""
    sample = with_exact_sum(rows(spec, MANY, 3, random))
    if values == "constant":
        constant = {
            name: np.broadcast_to(value[:1], value.shape) if value.shape[0] == MANY else value
            for name, value in sample.inputs.items()
        }
        sample = Sample(constant, sample.options)
    inputs = any_backend.tensors(sample, dtype, spec)  # float32 parameters: their gradients are not rounded to 16 bits
    outputs = any_backend.call(spec.name, inputs, sample.options)
    if values == "constant":
        thirds = [np.full(tuple(y.shape), 1 / 3) * [1, -0.7, 0.1] for y in outputs]
        upstream = tuple(any_backend.tensor(third, dtype) for third in thirds)
    else:
        upstream = any_backend.upstream(outputs)
    names = tuple(vectors(spec, sample))
    _, gradients = any_backend.gradients(spec.name, inputs, sample.options, names, upstream)
    arguments = {**any_backend.numpy(inputs, reference_dtype(dtype)), **sample.options}
    wide = [any_backend.to_numpy(dy).astype(reference_dtype(dtype)) for dy in upstream]
    exact, magnitude = spec.gradients(*wide, **arguments), spec.gradient_magnitude(*wide, **arguments)
    for name in names:
        got = any_backend.to_numpy(gradients[name])
        assert got.dtype == np.float32
        roundings = pairwise(MANY) + pairwise(3)  # of the sum, and of each term's row statistics
        assert_accurate(got, exact[name], magnitude[name], roundings, f"{sample}: gradient of {name}")


CLUSTERS = """
#include <cstdio>
#include "core/common/rows.h"
int main() {
  for (int multiprocessors : {132, 8, 7, 4, 2, 1}) {
    for (int size : {1, 100, 101, 201, 401, 800, 801, 9999})
      std::printf("%d ", fusedops::cluster_of(size, 100, multiprocessors));
    std::puts("");
  }
}
"""


def test_the_number_of_blocks_depends_on_the_row_length(tmp_path):
    """The number of blocks per row depends on the row's length alone, so that its bits do too, unless the GPU or MIG
    slice has too few multiprocessors. The selection is host code, which needs no such GPU."""
    source = tmp_path / "clusters.cpp"
    source.write_text(CLUSTERS)
    program = compiled(source, tmp_path / "clusters", "-std=c++20", f"-I{ROOT / 'core_cuda'}")
    chosen = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert [line.split() for line in chosen.splitlines()] == [
        list("11248888"),
        list("11248888"),
        list("11241111"),
        list("11241111"),
        list("11211111"),
        list("11111111"),
    ]
