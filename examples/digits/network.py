"""The network, written once: `fo` is `fusedops.torch`, `fusedops.tf`, or a module of the same functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

WIDTH = 128
BLOCKS = 3
CLASSES = 10
PARABOLA = (0.07, 0.5, 0.21)  # least-squares fit of GELU for normally distributed inputs


def logits(fo: Any, parameters: Mapping[str, Any], images: Any) -> Any:
    """The scores of the ten digits, one row per image."""
    h = fo.relu(fo.matmul(images, parameters["enter"]))
    for block in range(BLOCKS):
        branch = fo.matmul(h, parameters[f"weight{block}"])
        branch = fo.polynomial_activation(branch, PARABOLA) if block % 2 else fo.relu(branch)
        h = fo.axpby(parameters[f"alpha{block}"], branch, h)  # alpha is learned
    # A linear classifier of the pixels; their column of ones adds the bias.
    direct = fo.matmul(images, parameters["direct"])
    scores = fo.add(fo.matmul(h, parameters["leave"]), direct)
    return fo.scale(scores, parameters["gain"])


def initial_parameters(inputs: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, as float32 numpy arrays."""
    random = np.random.default_rng(seed)

    def weights(rows: int, columns: int, gain: float = 2.0) -> np.ndarray:
        return (random.normal(size=(rows, columns)) * np.sqrt(gain / rows)).astype(np.float32)

    parameters = {"enter": weights(inputs, WIDTH)}
    for block in range(BLOCKS):
        parameters[f"weight{block}"] = weights(WIDTH, WIDTH)
        parameters[f"alpha{block}"] = np.full(1, 0.5, np.float32)
    parameters["leave"] = weights(WIDTH, CLASSES, gain=0.1)
    parameters["direct"] = weights(inputs, CLASSES, gain=0.1)
    parameters["gain"] = np.ones(1, np.float32)
    return parameters
