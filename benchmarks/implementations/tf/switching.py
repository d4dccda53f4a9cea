"""Training steps of one Keras model, alternately with Keras's and with fusedops's layers: figures for docs/keras.md."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any

import tensorflow as tf

from fusedops.tf.keras import convert, revert

MODES = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "XLA": {"jit_compile": True}}
SWITCHES = {"Keras": revert, "fusedops": partial(convert, verbose=False)}


def measure(model: Any, x: Any, y: Any, turns: int) -> dict[tuple[str, str], tuple[float, float]]:
    """(mode, library of the layers) -> (median of seconds, peak GiB in use on the GPU).

    Both switches drop the functions that Keras traced for the model. They are saved here, so each is traced once.
    """
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    results = {}
    for mode, options in MODES.items():
        model.compile(model.optimizer, model.loss, **options)
        steps, seconds, bytes_in_use = {}, {}, {}
        for library, switch in SWITCHES.items():
            switch(model)
            model.train_on_batch(x, y)  # traces and compiles
            steps[library], seconds[library], bytes_in_use[library] = model.train_function, [], [0]
        for _ in range(turns):
            for library, switch in SWITCHES.items():
                switch(model)
                model.train_function = steps[library]
                if has_gpu:
                    tf.config.experimental.reset_memory_stats("GPU:0")
                start = time.perf_counter()
                model.train_on_batch(x, y)  # synchronizes, since it returns the loss as a number
                seconds[library].append(time.perf_counter() - start)
                if has_gpu:
                    bytes_in_use[library].append(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        for library in SWITCHES:
            results[mode, library] = median(seconds[library]), max(bytes_in_use[library]) / 2**30
    return results
