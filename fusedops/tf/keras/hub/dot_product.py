"""Attention by `keras.ops.dot_product_attention`: KerasHub's code, copied with our function in its place."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, ModuleType
from typing import Any

import keras
import tensorflow as tf

from fusedops.keras_layers.visibility import attend, can_attend, from_mask
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.layer import HubLayer

_theirs = keras.ops.dot_product_attention
_SIGNATURE = inspect.signature(_theirs)
_OPTIONS = {"query", "key", "value", "mask", "scale", "flash_attention"}  # the others are not supported


def dot_product_attention(*args: Any, **kwargs: Any) -> tf.Tensor:
    given = _SIGNATURE.bind(*args, **kwargs).arguments
    query, key, value = (given[name] for name in ("query", "key", "value"))
    has_others = any(value is not None and value is not False for name, value in given.items() if name not in _OPTIONS)
    if has_others or not can_attend(query, key, value) or query.shape[2] != key.shape[2]:
        return _theirs(*args, **kwargs)
    scale = given.get("scale") or query.shape[-1] ** -0.5
    return attend(query, key, value, from_mask(given.get("mask")), scale, average_if_masked=True)


def _with(module: ModuleType, **members: Any) -> ModuleType:
    """A copy of a module with other members."""
    copy = ModuleType(module.__name__)
    vars(copy).update({**vars(module), **members})
    return copy


_OURS = {"dot_product_attention": dot_product_attention}
_OPS = _with(keras.ops, nn=_with(keras.ops.nn, **_OURS), **_OURS)


class DotProductAttention(HubLayer):
    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        """The class's `call` with our functions."""
        call: Any = kind.call  # type: ignore[attr-defined]
        copy = FunctionType(call.__code__, {**call.__globals__, "ops": _OPS}, call.__name__, call.__defaults__)
        return {"call": functools.wraps(call)(copy)}


__getattr__ = made.counterparts("dot_product", DotProductAttention)
