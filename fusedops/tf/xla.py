"""Registers the operators with XLA, by a second library, which is optional.

Without it the operators still run in eager code and in graphs, as in a TensorFlow with another XLA than at the build.
"""

from __future__ import annotations

import ctypes

import tensorflow as tf

from fusedops import loading
from fusedops.declarations import Operator
from fusedops.tf.library import for_each


def _load() -> str | None:
    """Loads the library, or returns why it cannot be loaded."""
    framework = loading.FRAMEWORKS["tf"]
    _, file = framework.files
    sentence = loading.fault(framework, file)
    if sentence:
        return sentence
    path = str(framework.folder / file)
    try:
        tf.load_op_library(path)
    except tf.errors.OpError as error:
        return f"fusedops.tf's {file} does not load: {error.message}. Run: make build-tf"
    register = ctypes.CDLL(path).fusedops_tf_register_new_for_xla
    register.restype = ctypes.c_char_p

    def register_new(_: Operator) -> None:
        """Registers all operators that are not registered yet."""
        if (refused := register()) is not None:
            raise RuntimeError(refused.decode())

    for_each(register_new)
    return None


fault = _load()  # None: tf.function(jit_compile=True) compiles the operators
