"""Run by tf/test_saved_models.py: loads a SavedModel with nothing, then with fusedops or with its library alone, serves
and trains it. Writes results, prints error messages."""

import importlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

RATE = 0.5


def serve_and_train(parts):
    """Results by name. Each part has weights and the functions `serve`, `loss` and `step`, which takes a step of
    gradient descent; the last step is made here, with a tape around the part's loss."""
    results = {}
    for name, part in parts.items():
        results |= {f"{name} serve {i}": y for i, y in enumerate(part.serve())}
        part.step()
        results |= {f"{name} step {i}": tf.identity(weight) for i, weight in enumerate(part.weights)}
        try:
            with tf.GradientTape() as tape:
                loss = part.loss()
            gradients = tape.gradient(loss, part.weights)
        except LookupError as error:
            print(f"{name}: {error}")
            continue
        for i, (weight, gradient) in enumerate(zip(part.weights, gradients, strict=True)):
            weight.assign_sub(RATE * gradient)
            results[f"{name} second step {i}"] = tf.identity(weight)
    return {name: value.numpy() for name, value in results.items()}


if __name__ == "__main__":
    library, folder = sys.argv[1], Path(sys.argv[2])
    try:
        tf.saved_model.load(folder / "model")
    except RuntimeError as error:
        print(f"nothing loaded: {error}")
    if library == "fusedops":
        importlib.import_module("fusedops.tf")
    else:
        tf.load_op_library(library)
        assert not any(name.split(".")[0] == "fusedops" for name in sys.modules)
    model = tf.saved_model.load(folder / "model")
    names = (folder / "names.txt").read_text().split()
    np.savez(folder / "results.npz", **serve_and_train({name: getattr(model, name) for name in names}))
