"""Shapes and dtypes of an operator's outputs, inferred by the core in a binding's library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from fusedops.declarations import Operator

# Exceeds the size of the largest number of outputs of the largest rank.
_MAX_WORDS = 4096


def infer(
    library: ctypes.CDLL, operator: Operator, words: Sequence[int], attributes: Sequence[str], equalities: int = 0
) -> Any:
    """The core's result as integers, or its error message as bytes: fusedops_infer in c_api.cpp has the format.

    Args:
        words: the number of tensors of each input, and for each tensor its dtype, rank and dimensions.
        attributes: their texts, in the order of the declaration.
        equalities: the number of further words that symbols may need in the result.
    """
    library.fusedops_infer.restype = ctypes.c_char_p
    result = (ctypes.c_int64 * (_MAX_WORDS + equalities))()
    refused = library.fusedops_infer(
        operator.name.encode(), integers(words), texts(attributes), result, ctypes.c_int64(len(result))
    )
    return result if refused is None else refused


def integers(words: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(words))(*words)


def texts(values: Iterable[str]) -> Any:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * max(1, len(encoded)))(*encoded)
