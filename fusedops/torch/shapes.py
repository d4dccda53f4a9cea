"""Kernels for fake tensors: the core's `infer` gives the outputs' shapes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusedops import checks, inference
from fusedops.declarations import Operator
from fusedops.torch import internals
from fusedops.torch.library import CORE, DTYPES, LIBRARY, SIGNATURES, Signature, for_each

_UNKNOWN_RANK = -1


@dataclass(frozen=True)
class Shaped:
    """A dtype and a shape, for `infer` in place of a tensor."""

    dtype: torch.dtype
    shape: Sequence[Any]


def infer(signature: Signature, arguments: Sequence[Any]) -> list[tuple[torch.dtype, list[Any]]]:
    """The dtype and shape of every output, inferred by the core. Sizes may be symbols.

    Raises RuntimeError with the core's error message if it refuses the inputs.
    """
    symbols: list[Any] = []

    def token(size: Any) -> int:
        if isinstance(size, int):
            return size
        symbols.append(size)
        return -len(symbols)

    def size(token: int) -> Any:
        if token >= 0:
            return token
        parts, place = divmod(-token, CORE.half_symbol)
        found = symbols[place - 1]
        if parts % 2:
            internals.check(found % 2 == 0)  # type: ignore[no-untyped-call]
            found = found // 2
        return (found + CORE.block - 1) // CORE.block if parts >= 2 else found

    declaration = signature.declaration
    tokens: list[int] = []
    for given in signature.padded(arguments):
        tensors = _items(given)
        tokens.append(len(tensors))
        for tensor in tensors:
            tokens += [_place(tensor.dtype), len(tensor.shape), *map(token, tensor.shape)]
    answer = _answer(declaration, tokens, signature.attributes(tuple(arguments[signature.inputs :])), 2 * len(symbols))
    if isinstance(answer, bytes):
        raise RuntimeError(answer.decode())
    words = iter(answer)
    for _ in range(next(words)):
        left, right = size(next(words)), size(next(words))
        internals.check(left == right)  # type: ignore[no-untyped-call]  # becomes a guard
    outputs = []
    for _ in declaration.outputs:
        dtype, rank = DTYPES[next(words)], next(words)
        outputs.append((dtype, [size(next(words)) for _ in range(rank)]))
    return outputs


def takes_dtypes(name: str, dtypes: Sequence[torch.dtype | None]) -> bool:
    """True if an operator without lists accepts inputs of these dtypes, with any shapes and default attributes.

    None stands for an absent input.
    """
    declaration = SIGNATURES[name].declaration
    tokens: list[int] = []
    for dtype in dtypes:
        tokens += [0] if dtype is None else [1, _place(dtype), _UNKNOWN_RANK]
    return not isinstance(_answer(declaration, tokens, [a.default for a in declaration.attributes]), bytes)


def _place(dtype: torch.dtype) -> int:
    """The core's number for a dtype."""
    return DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES)


def _answer(declaration: Operator, tokens: list[int], attributes: Sequence[Any], more: int = 0) -> Any:
    """The core's result as integers, or its error message as bytes. `more`: words for equalities of symbols."""
    texts = [a.spelled(value) for a, value in zip(declaration.attributes, attributes, strict=True)]
    return inference.infer(LIBRARY, declaration, tokens, texts, more)


def _register_fake(operator: Operator) -> None:
    signature = SIGNATURES[operator.name]

    def fake(*arguments: Any, **keywords: Any) -> Any:
        arguments = _positional(signature, arguments, keywords)
        inferred = infer(signature, arguments)
        like = _items(arguments[operator.leading])[0]
        for declared, given in zip(operator.inputs, arguments, strict=False):
            for i, tensor in enumerate(_items(given)):
                if tensor.device != like.device:
                    raise checks.other_device(operator, checks.named(declared, i), like.device, tensor.device)
        outputs = [
            _empty(like, dtype, shape, output.padded and like.device.type == "cuda")
            for output, (dtype, shape) in zip(operator.outputs, inferred, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    torch.library.register_fake(f"fusedops::{operator.name}", fake)


def _empty(like: torch.Tensor, dtype: torch.dtype, shape: Sequence[Any], padded: bool) -> torch.Tensor:
    """The layout that torch_binding/allocation.cpp makes: row-major, or with row stride padded_row() of view.h."""
    if not padded or dtype.itemsize != 2:
        return like.new_empty(shape, dtype=dtype)
    row = (shape[-1] + CORE.padded - 1) // CORE.padded * CORE.padded
    return like.new_empty_strided(shape, like.new_empty((*shape[:-1], row)).stride(), dtype=dtype)


def _items(given: Any) -> Sequence[torch.Tensor]:
    """The tensors of an input: of a list, one, or none."""
    if isinstance(given, (list, tuple)):
        return given
    return () if given is None else (given,)


def _positional(signature: Signature, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    if not keywords:
        return arguments
    declaration = signature.declaration
    names = [x.name for x in declaration.inputs]
    names += [f"{names[i]}_value" for i in signature.scalars]
    defaults = [None] * signature.inputs + [0.0] * len(signature.scalars)
    names += [a.name for a in declaration.attributes]
    defaults += [a.default for a in declaration.attributes]
    rest = zip(names[len(arguments) :], defaults[len(arguments) :], strict=True)
    return arguments + tuple(keywords.get(name, default) for name, default in rest)


for_each(_register_fake)
