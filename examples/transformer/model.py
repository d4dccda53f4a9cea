"""The language model, written once.

`fo` is `fusedops.torch`, `fusedops.tf`, `fusedops.jax`, or a module of the same functions. `shapes` has the framework's
gather, reshape and split, which only move data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

LAYERS = 2
WIDTH = 128
HEADS = 4
SIZE = WIDTH // HEADS  # head dimension
HIDDEN = 352  # feed-forward width: 8/3 of the width, rounded up to a multiple of 32
CONTEXT = 128  # context length in characters


def logits(fo: Any, shapes: Any, parameters: Mapping[str, Any], angles: tuple[Any, Any], tokens: Any) -> Any:
    """The logits of the next character at each position of [batch, CONTEXT] tokens."""
    residual = shapes.gather(parameters["embedding"], tokens)
    x = fo.rms_norm(residual, parameters["norm"])
    for layer in range(LAYERS):
        p = {name: parameters[f"{name}{layer}"] for name in ("qkv", "out", "norm", "up", "down", "next_norm")}
        x, residual = fo.add_rms_norm(attention(fo, shapes, p, angles, x), residual, p["norm"])
        branch = fo.matmul(fo.swiglu(fo.matmul(x, p["up"])), p["down"])
        x, residual = fo.add_rms_norm(branch, residual, p["next_norm"])
    return fo.matmul(x, parameters["embedding"], transpose_b=True)


def attention(fo: Any, shapes: Any, p: Mapping[str, Any], angles: tuple[Any, Any], x: Any) -> Any:
    """Causal attention with HEADS heads."""
    batch = x.shape[0]
    packed = shapes.reshape(fo.matmul(x, p["qkv"]), (batch, CONTEXT, 3 * HEADS, SIZE))
    q, k, v = shapes.split(packed, 3, 2)  # [batch, CONTEXT, HEADS, SIZE]
    q, k = (fo.rope(heads, *angles, seq_dim=-3) for heads in (q, k))
    mixed = fo.attention(q, k, v, causal=True)
    return fo.matmul(shapes.reshape(mixed, (batch, CONTEXT, WIDTH)), p["out"])


def angles() -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotary angles, [CONTEXT, SIZE / 2], computed once for all frameworks."""
    frequencies = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    angle = np.outer(np.arange(CONTEXT), frequencies)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


class ModelSide:
    """The parts of a side that are the same in all frameworks. A side has `shapes`."""

    shapes: Any

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.angles = tuple(map(self.tensor, angles()))

    def logits(self, fo: Any, parameters: Mapping[str, Any], tokens: Any) -> Any:
        return logits(fo, self.shapes, parameters, self.angles, tokens)

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""

        def loss(parameters: Mapping[str, Any], tokens: Any, labels: Any) -> Any:
            return fo.cross_entropy(self.logits(fo, parameters, tokens), labels)

        return self.step_of(loss, self.parameters(arrays), self.tensor(tokens), self.tensor(labels), compiled)


def initial_parameters(vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, as float32 numpy arrays."""
    random = np.random.default_rng(seed)

    def weights(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (random.normal(size=(rows, columns)) * gain * rows**-0.5).astype(np.float32)

    def ones() -> np.ndarray:
        return np.ones(WIDTH, np.float32)

    into_residual = (2 * LAYERS) ** -0.5  # makes the residual's variance independent of the depth
    parameters = {"embedding": weights(WIDTH, vocabulary).T.copy(), "norm": ones()}
    for layer in range(LAYERS):
        parameters[f"qkv{layer}"] = weights(WIDTH, 3 * WIDTH)
        parameters[f"out{layer}"] = weights(WIDTH, WIDTH, into_residual)
        parameters[f"norm{layer}"] = ones()
        parameters[f"up{layer}"] = weights(WIDTH, 2 * HIDDEN)
        parameters[f"down{layer}"] = weights(HIDDEN, WIDTH, into_residual)
        parameters[f"next_norm{layer}"] = ones()
    return parameters
