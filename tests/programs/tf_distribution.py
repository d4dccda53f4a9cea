"""Run by tf/test_distribution.py: every operator on two devices of one process, compared with each device's part alone.

A separate process, since logical devices must be configured before anything else."""

import sys

import numpy as np

from tests.helpers.frameworks import TensorFlow, import_tensorflow
from tests.helpers.numerics import assert_same_bits
from tests.specifications import SPECIFICATIONS

tf = import_tensorflow()
kind = "CPU" if sys.argv[1] == "cpu" else "GPU"
if kind == "CPU":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
backend = TensorFlow(sys.argv[1])
strategy = tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"])
RATE = 0.125  # a power of two: the steps below round once, on any device


def values_and_gradients(spec, sample, inputs, watched):
    with tf.GradientTape() as tape:
        tape.watch(watched)
        # Bypasses backend.call, which sets the device.
        outputs = super(TensorFlow, backend).call(spec.name, inputs, sample.options)
        loss = tf.add_n([tf.reduce_sum(tf.sin(tf.cast(y, tf.float32))) for y in outputs])
    return [*outputs, *tape.gradient(loss, watched)]


def check(spec):
    """The parts have their own rows; the parameters are mirrored variables, and take a step with the sum of both
    devices' gradients."""
    samples = [spec.sample((4, 6), np.random.default_rng(seed)) for seed in (1, 2)]
    first, second = (backend.tensors(sample, "float32") for sample in samples)
    sample, wanted = samples[0], spec.differentiable(samples[0])
    shared = [name for name in wanted if name in spec.shared]
    parts = [first, {**second, **{name: first[name] for name in spec.shared if name in first}}]
    with strategy.scope():
        variables = {name: tf.Variable(first[name]) for name in shared}
    distributed = {
        name: strategy.experimental_distribute_values_from_function(
            lambda context, name=name: parts[context.replica_id_in_sync_group][name]
        )
        for name in first
        if name not in shared
    }

    def of_shared(results):
        gradients = dict(zip(wanted, results[-len(wanted) :], strict=True))
        return {name: gradients[name] for name in shared}

    def step(given):
        inputs = {name: (given | variables)[name] for name in first}
        results = values_and_gradients(spec, sample, inputs, [inputs[name] for name in wanted])
        for name, gradient in of_shared(results).items():
            total = tf.distribute.get_replica_context().all_reduce("sum", gradient)
            variables[name].assign(first[name] - RATE * total)
        return tuple(results)

    alone = []
    for place, part in enumerate(parts):
        with tf.device(f"{kind}:{place}"):
            part = {name: tf.identity(x) for name, x in part.items()}
            alone.append(values_and_gradients(spec, sample, part, [part[name] for name in wanted]))
    one, other = map(of_shared, alone)
    stepped = {name: first[name] - RATE * (one[name] + other[name]) for name in shared}

    def compare(results):
        for result, *expected in zip(results, *alone, strict=True):
            for got, single in zip(strategy.experimental_local_results(result), expected, strict=True):
                assert_same_bits(got.numpy(), single.numpy(), spec.name)
        for name, variable in variables.items():
            for copy in strategy.experimental_local_results(variable):
                assert_same_bits(copy.numpy(), stepped[name].numpy(), f"{spec.name}: {name}")
            variable.assign(first[name])

    eager = strategy.run(step, [distributed])
    for result in eager:
        devices = [y.device[-len("CPU:0") :] for y in strategy.experimental_local_results(result)]
        assert devices == [f"{kind}:0", f"{kind}:1"], f"{spec.name} ran on {devices}"
    compare(eager)
    compare(tf.function(lambda: strategy.run(step, [distributed]))())


for spec in SPECIFICATIONS:
    check(spec)
    print(spec.name)
