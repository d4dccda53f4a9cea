"""Run by tf/test_debugging.py: every operator and two of its derivatives, with TensorFlow's op determinism enabled for
the process: repeated calls have the same bits, and none of TensorFlow's own operators refuses."""

import sys

import numpy as np

from tests.helpers.checks import assert_same, results
from tests.helpers.frameworks import TensorFlow, import_tensorflow
from tests.helpers.numerics import assert_same_bits
from tests.specifications import SPECIFICATIONS

tf = import_tensorflow()
tf.random.set_seed(1)
tf.config.experimental.enable_op_determinism()
backend = TensorFlow(sys.argv[1])


def second_derivatives(spec, compile):
    sample = spec.sample((40, 33), np.random.default_rng(5))
    inputs = backend.tensors(sample, "float32")
    watched = [inputs[name] for name in spec.differentiable(sample)]

    def compute():
        with tf.GradientTape() as outer:
            outer.watch(watched)
            with tf.GradientTape() as inner:
                inner.watch(watched)
                outputs = backend.call(spec.name, inputs, sample.options)
                total = tf.add_n([tf.reduce_sum(y * y) for y in outputs])
            first = inner.gradient(total, watched)
            total = tf.add_n([tf.reduce_sum(g * g) for g in first])
        return outer.gradient(total, watched)

    return (tf.function(compute) if compile else compute)()


for spec in SPECIFICATIONS:
    for dtype in ("float32", "bfloat16"):
        assert_same(results(backend, spec, dtype), list(results(backend, spec, dtype)))
    for compile in (False, True):
        for got, expected in zip(second_derivatives(spec, compile), second_derivatives(spec, compile), strict=True):
            assert_same_bits(got.numpy(), expected.numpy(), spec.name)
    print(spec.name)
