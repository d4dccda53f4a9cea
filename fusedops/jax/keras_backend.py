"""JAX under Keras's layers: the members that fusedops/tf/keras_backend.py documents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import keras

TITLE = "JAX"
TENSOR = jax.Array
TENSORS = (TENSOR, keras.Variable)
ERRORS = ()
LABELS = "int32"
name_of = keras.backend.standardize_dtype


def xla_fault() -> None:
    """None: a handler that XLA does not take is an error when `fusedops.jax` is imported."""


@functools.cache
def has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def seed_of(generator: Any) -> jax.Array:
    seed: jax.Array = generator.next()  # the words of a key
    return seed


def summed(x: Any, y: Any) -> Any:
    return x + y


def are_eager(inputs: Sequence[Any], dtype: str) -> bool:
    """False: a training step is jitted as a whole, where the work of Keras around a call takes no time."""
    return False
