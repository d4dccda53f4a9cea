"""TensorFlow: several devices in one process, and several workers."""

from __future__ import annotations

import contextlib
import socket

import pytest

from tests.helpers.running import run_program, run_ranks
from tests.specifications import SPECIFICATIONS


def run(device: str) -> None:
    done = run_program("tf_distribution.py", device, device=device)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in SPECIFICATIONS]


def test_a_test_is_on_its_device(tf_backend, spec, random):
    """All operations of a test run on its device: on a host with a GPU, TensorFlow would choose the GPU."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    inputs = tf_backend.tensors(sample, "float32")
    watched = [inputs[name] for name in spec.differentiable(sample)]

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = tf_backend.call(spec.name, inputs, sample.options)
            total = tf.add_n([tf.reduce_sum(y) for y in outputs])
        return [*outputs, total, *tape.gradient(total, watched), tf.ones([2])]

    for way in (compute, tf.function(compute), tf.function(compute, jit_compile=True)):
        for result in way():
            assert f"{'CPU' if tf_backend.device == 'cpu' else 'GPU'}:{tf_backend.number}" in result.device


@pytest.mark.slow
def test_mirrored_on_two_cpus(tf_cpu):
    run("cpu")


@pytest.mark.slow
def test_mirrored_on_two_gpus(tf_gpu):
    if tf_gpu.gpus() < 2:
        pytest.skip("GPU: only one")
    run("cuda")


def free_ports(count):
    """Ports that another process may still take before a worker binds them; the worker then fails."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return ",".join(str(one.getsockname()[1]) for one in sockets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "tasks", "ways"),
    [("mirrored", 1, ("loop", "fit")), ("workers", 2, ("loop",)), ("server", 4, ("loop",))],
)
def test_training_of_two_workers(tf_backend, tmp_path, strategy, tasks, ways):
    """Losses and weights equal those of one worker, for fusedops's layers and for a converted model."""
    if tf_backend.device == "cuda" and tf_backend.gpus() < 2:
        pytest.skip("GPU: only one")
    program = ("tf_workers.py", strategy, free_ports(tasks))
    logs = run_ranks(*program, device=tf_backend.device, world=tasks, folder=tmp_path)
    expected = [f"{way} {model}" for model in ("ours", "converted") for way in ways]
    trained = logs[:1] if strategy == "server" else logs  # the other tasks are servers
    for log in trained:
        assert [line for line in log.splitlines() if line in expected] == expected
