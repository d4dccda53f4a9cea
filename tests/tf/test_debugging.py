"""TensorFlow: debugging modes of a process: numeric checks, determinism."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from tests.helpers.running import run_program
from tests.helpers.tf_functions import assert_all_same_bits, plainly, tensor_function, values_and_gradients
from tests.specifications import SPECIFICATIONS


@contextmanager
def check_numerics(tf):
    tf.debugging.enable_check_numerics()
    try:
        yield
    finally:
        tf.debugging.disable_check_numerics()


def test_check_numerics_changes_nothing(tf_backend, spec, random):
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    function, tensors = tensor_function(tf_backend, spec, sample)

    def compute():
        return values_and_gradients(tf, spec, sample, function, tensors, plainly)

    expected = compute()
    with check_numerics(tf):
        assert_all_same_bits(compute(), expected, "eager")
        assert_all_same_bits(tf.function(compute)(), expected, "graph")


def test_check_numerics_names_the_operator(tf_backend, spec, random):
    """The error names the operator that produced the first NaN."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    arrays = {name: x * np.nan if name in sample.floating else x for name, x in sample.inputs.items()}
    function, _ = tensor_function(tf_backend, spec, sample)
    tensors = [tf_backend.tensor(arrays[name], "float32") for name in sample.tensors]
    camel = "".join(part.capitalize() for part in spec.operator.split("_"))
    compiled = tf.function(function)
    with check_numerics(tf):
        for call, kind in ((function, "eagerly-executing"), (compiled, "graph")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=f'{kind} op "Fusedops{camel}"'):
                call(*tensors)
    assert np.isnan(tf.nest.flatten(function(*tensors))[0]).any()  # and passes when it is off


@pytest.mark.slow
def test_op_determinism(tf_backend, tmp_path):
    """TensorFlow then refuses its nondeterministic operators: fusedops's derivatives use none."""
    done = run_program("tf_determinism.py", tf_backend.device, device=tf_backend.device)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in SPECIFICATIONS]
