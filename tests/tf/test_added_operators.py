"""TensorFlow: operators added to the operator table at run time, from their own library."""

from __future__ import annotations

import json

import pytest

from tests.helpers.added_operators import compiled
from tests.helpers.running import python, run_program


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    return compiled(tmp_path_factory)


LOAD = """
import ctypes
import tensorflow as tf
from fusedops.tf import library

try:
    tf.saved_model.load({model!r})
except RuntimeError as error:
    print(error)
library.add(ctypes.CDLL({added!r}).fusedops_library)
model, x = tf.saved_model.load({model!r}), tf.constant([[1.0, 2.0, 3.0]])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = model.f(x)
print(y.numpy().tolist(), tape.gradient(y, x).numpy().tolist())
"""


def test_added_operators_are_like_any_other(tf_cpu, added, tmp_path):
    """Runs in its own process. In another one, the SavedModel that it leaves loads once the operators are added."""
    done = run_program("tf_added_operators.py", added, tmp_path)
    assert done.returncode == 0, done.stderr
    raised = json.loads((tmp_path / "raised.json").read_text())
    assert not raised, "\n".join(raised.values())

    done = python(LOAD.format(model=str(tmp_path / "model"), added=str(added)), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "Op type not registered 'FusedopsTriple'" in done.stdout
    assert "[[5.0, 10.0, 15.0]] [[5.0, 5.0, 5.0]]" in done.stdout
