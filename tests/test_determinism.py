"""The same inputs give the same bits: twice, with any number of threads, alone or in a batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checks import assert_same, results
from numerics import DTYPES, assert_same_bits
from specification import Sample
from specifications import SPECIFICATIONS


def test_twice(any_backend, spec, dtype):
    first = list(results(any_backend, spec, dtype))
    for _ in range(3):
        assert_same(results(any_backend, spec, dtype), first)


def test_threads_in_torch(torch_cpu, spec, dtype):
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


def test_threads_in_tensorflow(tf_cpu, tmp_path):
    """A TensorFlow process chooses its threads once, so each number has a process of its own."""
    files = [tmp_path / f"{threads}.npz" for threads in (1, 3)]
    for threads, file in zip((1, 3), files, strict=True):
        program = Path(__file__).with_name("tensorflow_threads.py")
        done = subprocess.run([sys.executable, program, str(threads), file], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, three = (np.load(file) for file in files)
    assert len(one.files) == len(three.files) > len(SPECIFICATIONS) * len(DTYPES)
    for label in one.files:
        assert_same_bits(three[label], one[label], label)


@pytest.mark.parametrize("spec", [spec for spec in SPECIFICATIONS if spec.rows_are_independent], ids=str)
def test_a_row_does_not_depend_on_the_others(any_backend, spec, dtype, random):
    sample = spec.sample((9, 1031), random)
    whole = any_backend.call(spec.name, any_backend.tensors(sample, dtype), sample.options)
    for rows in (slice(0, 1), slice(3, 5), slice(8, 9)):
        part = {
            name: value[rows] if isinstance(value, np.ndarray) and value.shape[:1] == (9,) else value
            for name, value in sample.inputs.items()
        }
        outputs = any_backend.call(spec.name, any_backend.tensors(Sample(part), dtype), sample.options)
        for output, expected in zip(outputs, whole, strict=True):
            assert_same_bits(any_backend.to_numpy(output), any_backend.to_numpy(expected)[rows])
