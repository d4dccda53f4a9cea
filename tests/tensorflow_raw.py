"""Run by test_tf_raw.py: calls every operator of the library, without the package. Writes results, prints errors."""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

library, folder = tf.load_op_library(sys.argv[1]), Path(sys.argv[2])
for file in folder.glob("*.npz"):
    operator = getattr(library, f"fusedops_{file.stem}")
    inputs = dict(np.load(file))
    np.save(file.with_suffix(""), operator(**inputs).numpy())
    try:
        operator(**{name: tf.cast(value, tf.int32) for name, value in inputs.items()})
    except tf.errors.InvalidArgumentError as error:
        print(f"{file.stem}: {error.message}")
assert not any(name.split(".")[0] == "fusedops" for name in sys.modules)
