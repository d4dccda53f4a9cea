"""TensorFlow: a SavedModel that uses every operator is served and trained in another process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import run_program, run_without_package
from tests.specifications import BUILT_IN

PROGRAM = "tf_saved_model.py"


def operator_module(backend: Any, spec: Any, custom: bool = False) -> Any:
    """An operator whose differentiable inputs are weights. `custom`: the user's gradient is twice as large."""
    tf = backend.tf
    sample = spec.sample((4, 6), np.random.default_rng(2))
    inputs = backend.tensors(sample, "float32")
    module = tf.Module()
    variables = {name: tf.Variable(inputs[name]) for name in spec.differentiable(sample)}
    module.weights = list(variables.values())

    def outputs(*weights):
        given = dict(zip(variables, weights, strict=True))
        return list(backend.call(spec.name, {**inputs, **given}, sample.options))

    @tf.custom_gradient
    def with_twice_the_gradient(*weights):
        def twice(*dys):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                results = outputs(*weights)
            return [2 * g for g in tape.gradient(results, weights, list(dys))]

        return outputs(*weights), twice

    def serve():
        return (with_twice_the_gradient if custom else outputs)(*(tf.convert_to_tensor(w) for w in module.weights))

    def loss():
        return tf.add_n([tf.reduce_sum(tf.sin(y)) for y in serve()])

    def step():
        with tf.GradientTape() as tape:
            total = loss()
        for weight, gradient in zip(module.weights, tape.gradient(total, module.weights), strict=True):
            weight.assign_sub(0.5 * gradient)

    module.serve, module.loss, module.step = (tf.function(f, input_signature=[]) for f in (serve, loss, step))
    return module


@pytest.fixture
def saved(tf_backend, tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder with a SavedModel, and the results of serving and training it here."""
    from tests.programs.tf_saved_model import serve_and_train

    tf = tf_backend.tf
    parts = {spec.name: operator_module(tf_backend, spec) for spec in BUILT_IN}
    parts["custom"] = operator_module(tf_backend, BUILT_IN[-1], custom=True)
    model = tf.Module()
    for name, part in parts.items():
        setattr(model, name, part)
    tf.saved_model.save(
        model, tmp_path / "model", options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    )
    (tmp_path / "names.txt").write_text(" ".join(parts))
    return tmp_path, serve_and_train(parts)


@pytest.mark.slow
def test_with_the_library_alone(tf_backend, saved):
    """Served, and trained by the gradients that were saved with it. A tape needs the gradients that fusedops registers;
    the error names the operator."""
    folder, expected = saved
    done = run_without_package(tf_backend, PROGRAM, tf_backend.functions.library_path(), folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"nothing loaded: .*Op type not registered 'Fusedops\w+'", done.stdout)
    found = np.load(folder / "results.npz")
    for name, value in expected.items():
        if "second step" not in name or name.startswith("custom"):
            assert_same_bits(found[name], value, name)
    for spec in BUILT_IN:
        camel = "".join(part.capitalize() for part in spec.operator.split("_"))
        assert re.search(rf"{spec.name}: No gradient defined for operation.*\(op type: Fusedops{camel}\)", done.stdout)


@pytest.mark.slow
def test_with_the_package(tf_backend, saved):
    """Trained by a tape around the loaded functions, too."""
    folder, expected = saved
    done = run_program(PROGRAM, "fusedops", folder, device=tf_backend.device, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = np.load(folder / "results.npz")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_same_bits(found[name], value, name)
