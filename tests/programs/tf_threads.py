"""Run by test_determinism.py: writes the bits of every operator, computed with a given number of threads."""

import sys

import numpy as np
import tensorflow as tf

from tests.helpers.checks import results
from tests.helpers.frameworks import TensorFlow
from tests.helpers.numerics import DTYPES, bits
from tests.specifications import SPECIFICATIONS

threads, file = int(sys.argv[1]), sys.argv[2]
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(threads)
backend = TensorFlow("cpu")
np.savez(
    file,
    **{
        f"{dtype} {label}": bits(array)
        for dtype in DTYPES
        for spec in SPECIFICATIONS
        for label, array in results(backend, spec, dtype)
    },
)
