"""Run by test_determinism.py: writes the bits of every operator, computed with a given number of threads.

In one dtype only: the core decides how work is divided, and torch's test covers all dtypes.
"""

import sys

import numpy as np
import tensorflow as tf

from tests.helpers.checks import results
from tests.helpers.frameworks import TensorFlow
from tests.helpers.numerics import bits
from tests.specifications import SPECIFICATIONS

threads, file = int(sys.argv[1]), sys.argv[2]
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(threads)
backend = TensorFlow("cpu")
np.savez(
    file,
    **{label: bits(array) for spec in SPECIFICATIONS for label, array in results(backend, spec, "float32")},
)
