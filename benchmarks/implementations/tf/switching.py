"""Training steps of one Keras model, alternately with Keras's and with fusedops's layers: figures for docs/keras.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

from fusedops.tf.keras import convert, revert

MODES = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "XLA": {"jit_compile": True}}
SWITCHES = {"Keras": revert, "fusedops": partial(convert, verbose=False)}
COLORS = {"Keras": "#d9a441", "fusedops": "#0b7a75"}
# (mode, library of the layers) -> (median of seconds, peak GiB in use on the GPU)
Results = Mapping[tuple[str, str], tuple[float, float]]


def measure(model: Any, x: Any, y: Any, turns: int) -> Results:
    """Steps of the model on one batch.

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


def table(results: Results) -> str:
    """The results as text. TensorFlow counts memory on a GPU alone."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    lines = ["       step, before and after" + "                          peak memory" * has_gpu]
    for mode in MODES:
        (before, before_peak), (after, after_peak) = (results[mode, library] for library in SWITCHES)
        line = f"{mode:5}  {before * 1e3:7.1f} -> {after * 1e3:6.1f} ms, {before / after:4.2f} times as fast"
        lines.append(line + f";  {before_peak:5.1f} -> {after_peak:4.1f} GiB" * has_gpu)
    if not has_gpu:
        lines.append("TensorFlow counts no memory on a CPU.")
    return "\n".join(lines)


def draw(measured: Mapping[str, Results], file: str) -> None:
    """The results of several models as bars."""
    panels = ["training step, ms", "peak memory, GiB"][: 1 + bool(tf.config.list_physical_devices("GPU"))]
    labels = [f"{name}, {mode}" for name in measured for mode in MODES]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(6 * len(panels), 4), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, (title, ax) in enumerate(zip(panels, axes[0], strict=True)):
        for place, library in zip((-0.2, 0.2), SWITCHES, strict=True):
            values = [each[mode, library][panel] * (1e3, 1)[panel] for each in measured.values() for mode in MODES]
            bars = ax.barh(np.arange(len(labels)) + place, values, 0.38, color=COLORS[library], label=library)
            ax.bar_label(bars, fmt="%.1f", padding=3)
        ax.set_title(title, loc="left")
        ax.set_yticks(range(len(labels)), labels)
        ax.margins(x=0.12)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].invert_yaxis()
    axes[0, -1].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    figure.savefig(file, dpi=110)
