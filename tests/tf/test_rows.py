"""TensorFlow: operators that are added to the table at run time, from a library of their own."""

from __future__ import annotations

import json

import pytest

from tests.helpers.added_rows import compiled
from tests.helpers.running import python, run_program


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return compiled(tmp_path_factory)


LOAD = """
import ctypes
import tensorflow as tf
from fusedops.tf import library

try:
    tf.saved_model.load({model!r})
except RuntimeError as error:
    print(error)
library.add(ctypes.CDLL({rows!r}).fusedops_library)
model, x = tf.saved_model.load({model!r}), tf.constant([[1.0, 2.0, 3.0]])
with tf.GradientTape() as tape:
    tape.watch(x)
    y = model.f(x)
print(y.numpy().tolist(), tape.gradient(y, x).numpy().tolist())
"""


def test_added_operators_are_like_any_other(tf_cpu, rows, tmp_path):
    """In a process of its own; in another one, the SavedModel that it leaves needs the operators before it is
    loaded."""
    done = run_program("tf_rows.py", rows, tmp_path)
    assert done.returncode == 0, done.stderr
    raised = json.loads((tmp_path / "raised.json").read_text())
    assert not raised, "\n".join(raised.values())

    done = python(LOAD.format(model=str(tmp_path / "model"), rows=str(rows)), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "Op type not registered 'FusedopsTriple'" in done.stdout
    assert "[[5.0, 10.0, 15.0]] [[5.0, 5.0, 5.0]]" in done.stdout
