"""fusedops.keras on Keras's backends TensorFlow and JAX: the same bits, and models that load on either."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import run_program

# Their products, angles, means or scores are computed by the framework.
OF_KERAS = ("GatedDense", "MultiHeadAttention, mask", "MultiHeadAttention, scores", "RotaryEmbedding")
CLOSE = 64 * 2.0**-24  # a few dozen roundings, relative to the largest value


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_both_backends(tf_cpu, tmp_path):
    """TensorFlow loads the model that JAX has trained and saved. A few dozen roundings separate their products."""
    for backend in ("jax", "tensorflow"):
        done = run_program("keras_backends.py", tmp_path, is_new=True, KERAS_BACKEND=backend)
        assert done.returncode == 0 and done.stdout.endswith("right\n"), done.stdout + done.stderr[-3000:]
    others, ours = (np.load(tmp_path / f"{backend}.npz") for backend in ("jax", "tensorflow"))
    assert ours.files == others.files and ours.files
    for name in ours.files:
        if name.startswith(OF_KERAS):
            np.testing.assert_allclose(others[name], ours[name], rtol=0, atol=CLOSE * np.abs(ours[name]).max())
        else:
            assert_same_bits(others[name], ours[name], name)
