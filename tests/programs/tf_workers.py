"""Run by tf/test_distribution.py, once per task: training under tf.distribute's strategies, compared with one worker.

The arguments are a strategy, the ports of its tasks, the kind of device, the rank and number of tasks, and a file that
the first task writes at its end.
"""

import json
import os
import sys
import time
from pathlib import Path

name, ports, device, rank, end = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4]), Path(sys.argv[6])
MIRRORED, WORKERS, SERVER = "mirrored", "workers", "server"
TASKS = {
    MIRRORED: [],
    WORKERS: [("worker", 0), ("worker", 1)],
    SERVER: [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)],
}[name]
if TASKS:
    cluster: dict[str, list[str]] = {}
    for (job, _), port in zip(TASKS, ports, strict=True):
        cluster.setdefault(job, []).append(f"localhost:{port}")
    job, index = TASKS[rank]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
    if device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(index) if job == "worker" else ""

import keras  # noqa: E402
import numpy as np  # noqa: E402

from tests.helpers.frameworks import import_tensorflow  # noqa: E402

tf = import_tensorflow()
import fusedops.tf as fo  # noqa: E402
import fusedops.tf.keras as fk  # noqa: E402

BATCH, TIME, WIDTH, CLASSES, STEPS = 8, 6, 16, 5, 5
random = np.random.default_rng(0)
data = [(random.normal(size=(BATCH, TIME, WIDTH)), random.integers(0, CLASSES, (BATCH, TIME))) for _ in range(STEPS)]


def layers_of(package):
    """A block of attention and a feed-forward layer; `package` provides the layers that Keras and fusedops share."""
    float64 = {"dtype": "float64"}
    x = keras.Input((TIME, WIDTH), **float64)
    h = package.LayerNormalization(**float64)(x)
    h = package.MultiHeadAttention(2, WIDTH // 2, **float64)(h, h, use_causal_mask=True)
    h = package.RMSNormalization(**float64)(keras.layers.Add(**float64)([x, h]))
    h = package.Dense(2 * WIDTH, activation="gelu", **float64)(h)
    model = keras.Model(x, package.Dense(CLASSES, **float64)(h))
    values = np.random.default_rng(1)
    model.set_weights([values.normal(size=w.shape) / 4 for w in model.weights])
    return model


def ours():
    return layers_of(fk)


def converted():
    return fk.convert(layers_of(keras.layers), verbose=False)


def optimizer_of():
    return fk.optimizers.AdamW(0.01, clipnorm=1.0)


def gradients_of(model, x, labels):
    """This replica's part of the mean over the whole batch, and its gradients."""
    with tf.GradientTape() as tape:
        loss = fo.cross_entropy(model(x, training=True), labels, reduction="sum") / (BATCH * TIME)
    return loss, tape.gradient(loss, model.trainable_variables)


def alone(build):
    """The losses and weights of one worker."""
    model, optimizer, losses = build(), optimizer_of(), []
    for x, labels in data:
        loss, gradients = gradients_of(model, x, labels)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(loss)
    return losses, model.get_weights()


def check(got, expected, label, relative=2.0**-26):
    """Sums of float64 in another order: half of the digits of the largest number are reliable."""
    for y, reference in zip(got, expected, strict=True):
        limit = relative * np.abs(reference).max()
        np.testing.assert_allclose(y, reference, rtol=0, atol=limit, err_msg=label)


def step_of(strategy, model, optimizer):
    """A step of all replicas, each with its part of the batch."""

    def replica(x, labels):
        loss, gradients = gradients_of(model, x, labels)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(x, labels):
        return strategy.reduce("sum", strategy.run(replica, (x, labels)), axis=None)

    return step


def model_and_optimizer(strategy, build):
    with strategy.scope():
        model, optimizer = build(), optimizer_of()
        optimizer.build(model.trainable_variables)
    return model, optimizer


def loop(strategy, build):
    model, optimizer = model_and_optimizer(strategy, build)
    step = step_of(strategy, model, optimizer)
    losses = [step(*batch) for batch in strategy.experimental_distribute_dataset(dataset())]
    return losses, model.get_weights()


def dataset():
    x, labels = (np.concatenate(parts) for parts in zip(*data, strict=True))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH, drop_remainder=True).with_options(options)


def fitted(strategy, build):
    with strategy.scope():
        model = build()
        loss = fk.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer_of(), loss, weighted_metrics=[], jit_compile=False)
    history = model.fit(dataset(), epochs=1, verbose=0, shuffle=False)
    return history.history["loss"], model.get_weights()


def synchronous(strategy, can_fit):
    assert strategy.num_replicas_in_sync == 2
    for build in (ours, converted):
        losses, weights = alone(build)
        got, weights_here = loop(strategy, build)
        check(got, losses, "losses")
        check(weights_here, weights, "weights")
        print(f"loop {build.__name__}", flush=True)
        if can_fit:
            (mean,), weights_here = fitted(strategy, build)
            check([mean], [np.mean(losses)], "loss of fit", relative=(2 * STEPS + 1) * 2**-24)  # Keras sums in float32
            check(weights_here, weights, "weights of fit")
            print(f"fit {build.__name__}", flush=True)


def parameter_server():
    """Each step runs on one of two workers, and the variables are on a server: the chief waits for each."""
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for build in (ours, converted):
        losses, weights = alone(build)
        model, optimizer = model_and_optimizer(strategy, build)
        step = step_of(strategy, model, optimizer)
        got = [coordinator.schedule(step, (tf.constant(x), tf.constant(labels))).fetch() for x, labels in data]
        check(got, losses, "losses")
        check(model.get_weights(), weights, "weights")
        print(f"loop {build.__name__}", flush=True)


if name == MIRRORED:
    kind = "CPU" if device == "cpu" else "GPU"
    if kind == "CPU":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    synchronous(tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"]), can_fit=True)
elif name == WORKERS:
    synchronous(tf.distribute.MultiWorkerMirroredStrategy(), can_fit=False)  # Keras's own layers have no `fit` there
elif TASKS[rank][0] == "chief":
    parameter_server()
    end.touch()
else:
    server = tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc")
    while not end.exists():
        time.sleep(0.1)
