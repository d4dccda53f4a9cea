"""AdamW over many parameters: fusedops's and Keras's. All update the same variables, each with its own moments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

import fusedops.tf.keras as fk
from benchmarks.cases.case import Case
from benchmarks.cases.optimizers import sizes_of
from benchmarks.measuring.timing import Build, Clock, Implementation


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    variables = [keras.Variable(tf.zeros(size, case.dtype), dtype=case.dtype) for size in sizes_of(case)]
    gradients = [tf.fill((size,), tf.cast(1e-3, case.dtype)) for size in sizes_of(case)]

    def build(package: Any, jit_compile: bool) -> Implementation:
        optimizer = package.optimizers.AdamW()
        optimizer.build(variables)
        # In training, gradients are computed in the graph. As arguments of the function they would take Python 18 µs
        # each, in total longer than the step.
        step = tf.function(lambda: optimizer.apply(gradients, variables), jit_compile=jit_compile)
        return Implementation(step, clock(), checked=False)

    return {
        "fusedops, graph": partial(build, fk, False),
        "graph": partial(build, keras, False),
        "fusedops, XLA": partial(build, fk, True),
        "XLA": partial(build, keras, True),
    }
