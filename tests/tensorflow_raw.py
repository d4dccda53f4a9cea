"""Run by test_tf_raw.py: calls every operator of the library, without the package. Writes results, prints errors."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

library, folder = tf.load_op_library(sys.argv[1]), Path(sys.argv[2])
calls = json.loads((folder / "calls.json").read_text())


def call(name, arrays):
    """Of an optional input, a list of one tensor or none."""
    inputs = {**arrays, **{key: [arrays[key]] if key in arrays else [] for key in calls[name]["optional"]}}
    results = getattr(library, f"fusedops_{name}")(**inputs, **calls[name]["attributes"])
    return results if isinstance(results, tuple) else (results,)


for file in folder.glob("*.npz"):
    arrays = dict(np.load(file))
    np.savez(file.with_suffix(".results.npz"), *(result.numpy() for result in call(file.stem, arrays)))
    try:
        call(file.stem, {name: tf.cast(value, tf.int32) for name, value in arrays.items()})
    except tf.errors.InvalidArgumentError as error:
        print(f"{file.stem}: {error.message}")
assert not any(name.split(".")[0] == "fusedops" for name in sys.modules)
