"""Random calls against float64, by seed and time: `python -m soak`, or `make soak`.

`tests/specifications/` defines each operator's result, accuracy and possible calls, so a new operator needs no code
here. The layers, from below:

    layout       a tensor in memory: any strides, spaced, expanded, misaligned
    plan         the choices for a call, which follow from its seed and number alone, and simpler choices
    call         the arrays of a planned call, and the expected results
    torch_side   the ways to call an operator in PyTorch, as source code, and other code specific to PyTorch
    tf_side      the same for TensorFlow
    jax_side     the same for JAX
    running      one call, from its plan to its failure
    program      a failed call as a standalone program
    shrink       the simplest call that still fails
    worker       one process that makes many calls, and its memory
    crew         the processes, and their reports
    report       the tables
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # there are more threads than cores
# Processes and frameworks share the GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
