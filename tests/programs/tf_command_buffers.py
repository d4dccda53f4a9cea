"""Run by tf/test_xla.py: every operator's forward and backward on a GPU, in CUDA graphs of XLA."""

import functools
import sys

import numpy as np

from tests.helpers.frameworks import TensorFlow
from tests.helpers.numerics import assert_same_bits
from tests.helpers.tf_functions import tensor_function, value_and_gradients
from tests.specifications import SPECIFICATIONS

backend = TensorFlow("cuda")
tf = backend.tf
for spec in SPECIFICATIONS:
    random = np.random.default_rng(11)
    samples = [spec.sample((33, 130), random) for _ in range(3)]  # later ones have other buffers: graphs are updated
    calls = [tensor_function(backend, spec, sample) for sample in samples]
    compute = functools.partial(value_and_gradients, tf, spec, samples[0], calls[0][0])
    compiled = tf.function(compute, jit_compile=True)
    for _, tensors in calls:
        for got, expected in zip(compiled(tensors), compute(tensors), strict=True):
            assert_same_bits(got.numpy(), expected.numpy(), spec.name)
    print(spec.name)
    sys.stdout.flush()
