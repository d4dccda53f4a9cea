"""Random calls against float64, by seed and time: `python -m soak`, or `make soak`.

What an operator computes, how exactly, and which calls of it there are, is in `tests/specifications/`, so that a new
operator is soaked without further mention. The layers, from below:

    layout       a tensor in memory: any strides, spaced, expanded, misaligned
    plan         what is chosen for a call, by its seed and number alone, and how each choice is made simpler
    call         the arrays of a planned call, and what must come out
    torch_side   the ways to call an operator in PyTorch, as source code; and what else is PyTorch's
    tf_side      the same for TensorFlow
    running      one call, from its plan to its failure
    program      a failed call as a program of its own
    shrink       the simplest call that still fails
    worker       one process of calls after calls, and its memory
    crew         the processes, and what they report
    report       the tables
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # there are more threads than cores
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # processes and frameworks share the GPU
