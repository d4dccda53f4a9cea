"""Run by tf/test_raw.py: calls every operator of the library, without the package. Writes results, prints errors."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

library, folder = tf.load_op_library(sys.argv[1]), Path(sys.argv[2])


def results(call, inputs):
    found = getattr(library, call["function"])(**inputs, **call["attributes"])
    return tf.nest.flatten(found)


for file in sorted(folder.glob("*.json")):
    call, arrays = json.loads(file.read_text()), np.load(file.with_suffix(".npz"))
    inputs = tf.nest.map_structure(lambda name, arrays=arrays: tf.constant(arrays[name]), call["inputs"])
    np.savez(file.with_suffix(".results.npz"), *(result.numpy() for result in results(call, inputs)))
    try:
        results(call, tf.nest.map_structure(lambda x: tf.cast(x, tf.int32), inputs))
    except tf.errors.InvalidArgumentError as error:
        print(f"{file.stem}: {error.message}")
assert not any(name.split(".")[0] == "fusedops" for name in sys.modules)
