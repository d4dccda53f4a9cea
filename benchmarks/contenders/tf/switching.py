"""Training steps of one Keras model, with Keras's layers and with fusedops's in turn: the figures of docs/keras.md."""

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
    """(mode, whose layers) -> the median of seconds, and the most GiB in use on the GPU.

    Both switches drop the functions that Keras traced for the model; they are kept here, so that each is traced once.
    """
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    results = {}
    for mode, options in MODES.items():
        model.compile(model.optimizer, model.loss, **options)
        steps, seconds, bytes_in_use = {}, {}, {}
        for who, switch in SWITCHES.items():
            switch(model)
            model.train_on_batch(x, y)  # traces and compiles
            steps[who], seconds[who], bytes_in_use[who] = model.train_function, [], [0]
        for _ in range(turns):
            for who, switch in SWITCHES.items():
                switch(model)
                model.train_function = steps[who]
                if has_gpu:
                    tf.config.experimental.reset_memory_stats("GPU:0")
                start = time.perf_counter()
                model.train_on_batch(x, y)  # returns the loss as a number: it has waited for the GPU
                seconds[who].append(time.perf_counter() - start)
                if has_gpu:
                    bytes_in_use[who].append(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        for who in SWITCHES:
            results[mode, who] = median(seconds[who]), max(bytes_in_use[who]) / 2**30
    return results
