"""The same inputs give the same bits: in a repeated call, with any number of threads, alone or in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import assert_same, results
from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import run_program
from tests.specifications import SPECIFICATIONS


def test_a_repeated_call_has_the_same_bits(any_backend, spec, dtype):
    first = list(results(any_backend, spec, dtype))
    for _ in range(3 if any_backend.device == "cuda" else 1):  # on a CPU, the tests of thread counts repeat calls
        assert_same(results(any_backend, spec, dtype), first)


def test_bits_do_not_depend_on_torch_threads(torch_cpu, spec, dtype):
    torch = torch_cpu.torch
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = list(results(torch_cpu, spec, dtype))
        for threads in (2, 3, 8):
            torch.set_num_threads(threads)
            assert_same(results(torch_cpu, spec, dtype), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_bits_do_not_depend_on_tensorflow_threads(tf_cpu, tmp_path):
    """A TensorFlow process fixes its number of threads once, so each number runs in its own process."""
    files = [tmp_path / f"{threads}.npz" for threads in (1, 3)]
    for threads, file in zip((1, 3), files, strict=True):
        done = run_program("tf_threads.py", str(threads), file)
        assert done.returncode == 0, done.stderr
    one, three = (np.load(file) for file in files)
    assert len(one.files) == len(three.files) > len(SPECIFICATIONS)
    for label in one.files:
        assert_same_bits(three[label], one[label], label)


# (rows, columns). On a GPU the larger batches take other paths: fewer threads per row, a loop over rows,
# or rows in shared memory.
BATCHES = ((9, 1031), (257, 72), (3, 20_011))
LARGE_BATCHES = ((40, 40_001), (600, 4096), (40_000, 3), (40_000, 16), (40_000, 72), (300, 20_000), (150, 40_000))


@pytest.mark.parametrize("spec", [spec for spec in SPECIFICATIONS if spec.rows_are_independent], ids=str)
def test_a_row_does_not_depend_on_the_others(any_backend, spec, dtype, random):
    for count, columns in BATCHES if any_backend.device == "cpu" else BATCHES + LARGE_BATCHES:
        shape = (count, *(1,) * (spec.least_rank - 2), columns)
        sample = spec.sample(shape, random)
        options = {**sample.options, **spec.row_options}
        inputs = any_backend.tensors(sample, dtype)
        of_rows = [name for name in sample.tensors if sample.inputs[name].shape[:1] == (count,)]
        wanted = tuple(name for name in of_rows if name in spec.differentiable(sample))
        outputs, gradients = any_backend.gradients(spec.name, inputs, options, wanted)
        upstream = any_backend.upstream(outputs)
        whole = [*outputs, *gradients.values()]
        for rows in (slice(0, 1), slice(count // 3, count // 3 + 2), slice(count - 1, count)):
            part = {name: x[rows] if name in of_rows else x for name, x in inputs.items()}
            parts = tuple(dy[rows] for dy in upstream)
            outputs, gradients = any_backend.gradients(spec.name, part, options, wanted, parts)
            for got, expected in zip([*outputs, *gradients.values()], whole, strict=True):
                assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(expected)[rows], str(shape))
