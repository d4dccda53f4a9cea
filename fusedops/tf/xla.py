"""What XLA knows of the operators: a second library beside theirs, which is loaded if it loads.

The operators do without it: a TensorFlow whose XLA is another one than at the build still runs them in eager code and
in graphs.
"""

from __future__ import annotations

import ctypes

import tensorflow as tf

from fusedops import loading
from fusedops.declarations import Operator
from fusedops.tf.library import for_each


def _load() -> str | None:
    """Loads the library, or says why it cannot be."""
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

    def register_new(row: Operator) -> None:
        """Whichever row it is for: registers those that are not registered."""
        if (refused := register()) is not None:
            raise RuntimeError(refused.decode())

    for_each(register_new)
    return None


fault = _load()  # None: tf.function(jit_compile=True) compiles the operators
