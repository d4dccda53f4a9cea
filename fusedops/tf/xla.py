"""What XLA knows of the operators: a second library beside theirs, which is loaded if it loads.

The operators do without it: a TensorFlow whose XLA is another one than at the build still runs them in eager code and
in graphs.
"""

from __future__ import annotations

import tensorflow as tf

from fusedops import loading


def _load() -> str | None:
    """Loads the library, or says why it cannot be."""
    framework = loading.FRAMEWORKS["tf"]
    _, file = framework.files
    sentence = loading.fault(framework, file)
    if sentence:
        return sentence
    try:
        tf.load_op_library(str(framework.folder / file))
    except tf.errors.OpError as error:
        return f"fusedops.tf's {file} does not load: {error.message}. Run: make build-tf"
    return None


fault = _load()  # None: tf.function(jit_compile=True) compiles the operators
