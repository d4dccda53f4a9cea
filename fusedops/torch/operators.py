"""The operators of the compiled library as torch knows them, with the shape rules for fake tensors and vmap."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusedops import checks, declarations, loading

# In the order of the core's DType.
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
)

_HALF = 1 << 40  # half of a symbol is the symbol less this: core_cuda/core/declaration/c_api.cpp


def _load() -> ctypes.CDLL:
    path = str(loading.library("torch"))
    torch.ops.load_library(path)
    library = ctypes.CDLL(path)
    library.fusedops_infer.restype = ctypes.c_char_p
    return library


_LIBRARY = _load()
DECLARATIONS = declarations.read(_LIBRARY)


@dataclass(frozen=True)
class Signature:
    """An operator's arguments in the order of its schema: inputs, the numbers of scalar inputs, attributes."""

    declaration: declarations.Operator
    scalars: tuple[int, ...]  # positions of the scalar inputs

    @staticmethod
    def of(declaration: declarations.Operator) -> Signature:
        return Signature(declaration, tuple(i for i, x in enumerate(declaration.inputs) if x.kind == "scalar"))

    @property
    def inputs(self) -> int:
        return len(self.declaration.inputs)

    def padded(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs, of arguments that may be more or fewer; torch leaves trailing defaults, absent inputs, out."""
        given = tuple(inputs[: self.inputs])
        return given + (None,) * (self.inputs - len(given))

    def attributes(self, rest: tuple[Any, ...]) -> tuple[Any, ...]:
        """The attributes among the arguments behind the inputs; torch leaves trailing defaults out."""
        given = tuple(rest[len(self.scalars) :])
        return given + tuple(a.default for a in self.declaration.attributes[len(given) :])


def overload(name: str) -> Callable[..., Any]:
    return getattr(torch.ops.fusedops, name).default


def infer(signature: Signature, arguments: tuple[Any, ...]) -> list[tuple[torch.dtype, list[Any]]]:
    """The dtype and shape of every output, by the core's rule, over sizes that may be symbols."""
    symbols: list[Any] = []

    def token(size: Any) -> int:
        if isinstance(size, int):
            return size
        symbols.append(size)
        return -len(symbols)

    def size(token: int) -> Any:
        if token >= 0:
            return token
        if token > -_HALF:
            return symbols[-token - 1]
        whole = symbols[-(token + _HALF) - 1]
        torch._check(whole % 2 == 0)  # type: ignore[no-untyped-call]
        return whole // 2

    declaration = signature.declaration
    tokens: list[int] = []
    for tensor in signature.padded(arguments):
        if tensor is None:
            tokens.append(0)
        else:
            place = _DTYPES.index(tensor.dtype) if tensor.dtype in _DTYPES else len(_DTYPES)
            tokens += [1, place, tensor.dim(), *map(token, tensor.shape)]
    texts = [
        attribute.spelled(value).encode()
        for attribute, value in zip(
            declaration.attributes, signature.attributes(arguments[signature.inputs :]), strict=True
        )
    ]
    result = (ctypes.c_int64 * 1024)()
    refused = _LIBRARY.fusedops_infer(
        declaration.name.encode(),
        (ctypes.c_int64 * len(tokens))(*tokens),
        (ctypes.c_char_p * max(1, len(texts)))(*texts),
        result,
        ctypes.c_int64(len(result)),
    )
    if refused is not None:
        raise RuntimeError(refused.decode())
    words = iter(result)
    for _ in range(next(words)):
        left, right = size(next(words)), size(next(words))
        torch._check(left == right)  # type: ignore[no-untyped-call]  # it becomes a guard
    outputs = []
    for _ in declaration.outputs:
        dtype, rank = _DTYPES[next(words)], next(words)
        outputs.append((dtype, [size(next(words)) for _ in range(rank)]))
    return outputs


def _register_fake(name: str, signature: Signature) -> None:
    first = next(i for i, x in enumerate(signature.declaration.inputs) if x.kind == "tensor")

    def fake(*arguments: Any, **keywords: Any) -> Any:
        arguments = _positional(signature, arguments, keywords)
        like = arguments[first]
        for declared, tensor in zip(signature.declaration.inputs, arguments, strict=False):
            if tensor is not None and tensor.device != like.device:
                raise checks.other_device(signature.declaration, declared, first, like.device, tensor.device)
        outputs = [like.new_empty(shape, dtype=dtype) for dtype, shape in infer(signature, arguments)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    torch.library.register_fake(f"fusedops::{name}", fake)


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


def _padded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """With zeros at the end of a dimension."""
    shape = list(x.shape)
    shape[dim] = 1
    return torch.cat([x, x.new_zeros(shape)], dim)


def vmap_rule(signature: Signature, op: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """How `op(*inputs, *rest)` maps over a dimension of some of its inputs."""

    shared = {i for i, x in enumerate(signature.declaration.inputs) if x.kind == "scalar" or x.parameter}
    attributes = [x.name for x in signature.declaration.attributes]
    needs = [f"need_{x.name}" for x in signature.declaration.outputs]

    def fold(size: int, dims: Sequence[int | None], inputs: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, Any]:
        """One call with the mapped dimension first, where the operator treats leading dimensions alike."""
        moved = [
            x if i in shared or x is None else x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
            for i, (x, d) in enumerate(zip(inputs, dims, strict=True))
        ]
        results = op(*moved, *rest)
        if isinstance(results, torch.Tensor):
            return results, 0
        given = dict(zip(attributes, signature.attributes(tuple(rest)), strict=True))
        # An output that is not needed has no elements and one dimension, however many calls there are.
        return results, tuple(0 if given.get(need, True) else None for need in needs)

    def loop(size: int, dims: Sequence[int | None], inputs: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, Any]:
        if size == 0:  # shapes and dtypes are those of a call on zeros, of which nothing is kept
            padded = [x if d is None else _padded(x, d) for x, d in zip(inputs, dims, strict=True)]
            results, places = loop(1, dims, padded, rest)
            return torch.utils._pytree.tree_map(lambda y: y[:0], results), places
        results = [
            op(*(x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True)), *rest)
            for i in range(size)
        ]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    def rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        inputs, rest = signature.padded(arguments), arguments[signature.inputs :]
        dims = signature.padded(dims)
        ranks = {
            x.dim() - (d is not None)
            for i, (x, d) in enumerate(zip(inputs, dims, strict=True))
            if i not in shared and x is not None
        }
        foldable = signature.declaration.batched and len(ranks) == 1 and all(dims[i] is None for i in shared)
        return (fold if foldable else loop)(info.batch_size, dims, inputs, rest)

    return rule


SIGNATURES = {name: Signature.of(declaration) for name, declaration in DECLARATIONS.items()}
for _name, _signature in SIGNATURES.items():
    for _registered in (_name, f"_{_name}"):
        _register_fake(_registered, _signature)
        torch.library.register_vmap(f"fusedops::{_registered}", vmap_rule(_signature, overload(_registered)))
