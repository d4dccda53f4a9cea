"""TensorFlow: several devices in one process."""

from __future__ import annotations

import pytest

from tests.helpers.running import run_program
from tests.specifications import SPECIFICATIONS


def run(device: str) -> None:
    done = run_program("tf_distribution.py", device, device=device)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in SPECIFICATIONS]


def test_a_test_is_on_its_device(tf_backend, spec, random):
    """All of it, whatever is called in which way: on a host with a GPU, TensorFlow would choose that."""
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
