"""Calls of registered operators, whole and divided along their declared axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusedops.axes import Division, Share, divisions, means
from tests.helpers import float8
from tests.helpers.updates import UPDATES

MAX_ELEMENTS = 1000  # of a call's inputs: larger calls take long, and have the same axes


@dataclass(frozen=True)
class OperatorCall:
    """A call of a registered operator with all inputs; a list has one tensor."""

    name: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        shown = [tuple(x.shape) if hasattr(x, "shape") else x for x in map(single, self.arguments)]
        return f"{self.name}{tuple(shown)}"


def single(x: Any) -> Any:
    """The tensor of a list; None of an empty one."""
    return (x[0] if x else None) if isinstance(x, list) and (not x or hasattr(x[0], "shape")) else x


def recorded(backend: Any, spec: Any, random: np.random.Generator) -> list[OperatorCall]:
    """Forward and backward calls for the small samples of a specification: one for each set of options, of present
    inputs and of divisible dimensions."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from fusedops.torch.library import SIGNATURES

    found: dict[str, OperatorCall] = {}

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "fusedops":
                name = func._schema.name.removeprefix("fusedops::").removeprefix("_")
                signature = SIGNATURES[name]
                inputs = signature.padded(args)
                attributes = signature.attributes(args[signature.inputs :])
                numbers = (*args[signature.inputs :], *(0.0 for _ in signature.scalars))[: len(signature.scalars)]
                longer = [None if x is None else [size > 1 for size in x.shape] for x in inputs]
                found[f"{name} {longer} {attributes}"] = OperatorCall(name, (*inputs, *numbers, *attributes))
            return func(*args, **(kwargs or {}))

    torch = backend.torch
    for sample in (spec.sample((3, 4, 6), random), spec.sample((4, 6), random), *spec.more_samples(random)):
        if sum(np.size(x) for x in sample.inputs.values()) > MAX_ELEMENTS:
            continue
        wanted = spec.differentiable(sample)
        inputs = backend.leaves(backend.tensors(sample, "float64"), wanted)
        with Recorder():
            outputs = backend.call(spec.name, inputs, sample.options)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            upstream = [backend.from_numpy(random.random(tuple(y.shape))).to(y.dtype) for y in outputs]
            torch.autograd.grad(outputs, [inputs[name] for name in wanted], upstream)
        with Recorder(), torch.no_grad():  # a forward may do more if a gradient is wanted
            backend.call(spec.name, inputs, sample.options)
    return list(found.values())


def others(backend: Any, random: np.random.Generator) -> Iterator[OperatorCall]:
    """Calls of the operators without a specification: results in 8 bits, and updates."""
    from fusedops.torch.library import SIGNATURES

    def tensor(*shape: int) -> Any:
        return backend.from_numpy(random.normal(size=shape))

    for name in float8.SIGNATURES:
        signature = SIGNATURES[name]
        rows = {"x", "residual", "gate", "up"}
        values = [tensor(4, 3, 6) if x.name in rows else tensor(6) for x in signature.declaration.inputs[:-1]]
        options = {a.name: a.default for a in signature.declaration.attributes}
        for scaling, scale in (("row", None), ("block", None), ("block", (4, 3, 1)), ("tensor", None), ("tensor", ())):
            given = None if scale is None else tensor(*scale).abs() + 1
            yield OperatorCall(name, (*values, given, *{**options, "scaling": scaling}.values()))
    for a, b in ((False, False), (True, False), (False, True), (True, True)):
        left, right = tensor(4, 6), tensor(6, 5)
        for leading in ((), (3,)):
            factors = [
                x.expand(*leading, *x.shape).contiguous() for x in (left.T if a else left, right.T if b else right)
            ]
            yield OperatorCall("accumulate_matmul", (tensor(*leading, 4, 5), *factors, a, b))
    for update in UPDATES:
        signature = SIGNATURES[update.name]
        if update.name == "accumulate_matmul" or not signature.declaration.axes:
            continue
        for call in update.calls("float64", random):
            lists = [[backend.from_numpy(x[3])] if x else [] for x in call.lists.values()]
            scalars = [
                backend.from_numpy(x) if isinstance(x, np.ndarray | np.generic) else x for x in call.scalars.values()
            ]
            numbers = [x for x in scalars if isinstance(x, float)] or [0.0]
            tensors = [None if isinstance(x, float) else x for x in scalars]
            options = {a.name: a.default for a in signature.declaration.attributes} | call.options
            yield OperatorCall(update.name, (*lists, *tensors, *numbers, *options.values()))


def run(torch: Any, call: OperatorCall) -> tuple[list[Any], list[Any]]:
    """The results of a call, and copies of its mutated inputs."""
    from fusedops.torch.library import SIGNATURES, overload

    signature = SIGNATURES[call.name]
    arguments = list(call.arguments)
    for i, x in enumerate(signature.declaration.inputs):
        if x.updated:
            arguments[i] = torch.utils._pytree.tree_map(torch.clone, arguments[i])
    results = overload(call.name)(*arguments)
    updated = [single(y) for y, x in zip(arguments, signature.declaration.inputs, strict=False) if x.updated]
    results = () if results is None else results if isinstance(results, tuple) else (results,)
    return list(results), updated


def ways(call: OperatorCall, results: list[Any]) -> list[Division]:
    """The divisions of a call, of axes with more than one element."""
    from fusedops.torch.library import SIGNATURES

    signature = SIGNATURES[call.name]
    inputs = [single(x) for x in call.arguments[: signature.inputs]]
    shapes = [None if x is None else tuple(x.shape) for x in inputs]
    found = divisions(signature.declaration, attributes(call), shapes, [tuple(y.shape) for y in results])
    return [division for division in found if min(division.sizes) > 1]


def attributes(call: OperatorCall) -> dict[str, Any]:
    from fusedops.torch.library import SIGNATURES

    declared = SIGNATURES[call.name].declaration.attributes
    return dict(zip([a.name for a in declared], call.arguments[len(call.arguments) - len(declared) :], strict=True))


def divided(torch: Any, call: OperatorCall, division: Division, parts: int) -> tuple[list[Any], list[Any]]:
    """The results of `run` for the same call in parts."""
    from fusedops.torch.library import SIGNATURES

    signature = SIGNATURES[call.name]
    declaration = signature.declaration
    results, updated, places = [], [], []
    for part in range(parts):
        inputs = [
            torch.utils._pytree.tree_map(
                lambda x, share=share, part=part: share_of(torch, x, share, part, parts), given
            )
            for given, share in zip(call.arguments, division.inputs, strict=False)
        ]
        arguments = (*inputs, *call.arguments[len(declaration.inputs) :])
        if division.numbered is not None:
            inputs[division.numbered.seed] = seed_of_part(torch, call, division, part, parts)
            arguments = (*inputs, *call.arguments[len(declaration.inputs) :])
        if division.place is not None:
            places.append(place_of(signature, arguments, division, part, parts))
            arguments = places[-1].arguments
        for found, ys in zip((results, updated), run(torch, OperatorCall(call.name, arguments)), strict=True):
            found.append(ys)
    if places and places[0].join is not None:
        statistics = torch.stack([each.statistics(ys) for each, ys in zip(places, results, strict=True)])
        results = [list(each.results(statistics, ys)) for each, ys in zip(places, results, strict=True)]
    weights = means(declaration, attributes(call), [single(x) for x in call.arguments[: len(declaration.inputs)]])
    joined = [
        join(torch, [ys[i] for ys in results], share, [ys[weights[i]] for ys in results] if i in weights else None)
        for i, share in enumerate(division.outputs)
    ]
    shares = [s for s, x in zip(division.inputs, declaration.inputs, strict=True) if x.updated]
    return joined, [
        None if ys[0] is None else join(torch, ys, s) for ys, s in zip(zip(*updated, strict=True), shares, strict=True)
    ]


def seed_of_part(torch: Any, call: OperatorCall, division: Division, part: int, parts: int) -> Any:
    numbered, dim = division.numbered, division.numbered_dim
    assert numbered is not None
    pieces = [len(each) for each in np.array_split(np.empty(numbered.shape[dim]), parts)]
    offsets, sizes = [0] * len(numbered.shape), list(numbered.shape)
    offsets[dim], sizes[dim] = sum(pieces[:part]), pieces[part]
    seed = call.arguments[numbered.seed]
    return torch.cat([seed, torch.tensor(numbered.runs(offsets, sizes), device=seed.device)])


def place_of(signature: Any, arguments: tuple[Any, ...], division: Division, part: int, parts: int) -> Any:
    from fusedops.torch.distributed.joins import Part

    sizes = [len(each) for each in np.array_split(np.empty(division.sizes[0]), parts)]
    return Part(signature, arguments, division, sum(sizes[:part]), sizes[part])


def share_of(torch: Any, x: Any, share: Share, part: int, parts: int) -> Any:
    if share.kind == "part":
        return torch.tensor_split(x, parts, share.dim)[part]
    return torch.zeros_like(x) if share.kind == "term" and part else x


def join(torch: Any, shares: Iterable[Any], share: Share, weights: Any = None) -> Any:
    shares = list(shares)
    if weights is not None and (share.kind == "mean" or share.is_weighted):
        total = sum(weights)
        fractions = [w / total if total else torch.ones_like(w) for w in weights]
        shares = [y * f if f else torch.zeros_like(y) for y, f in zip(shares, fractions, strict=True)]
    if share.kind == "part":
        return torch.cat([y.view(torch.uint8) if y.element_size() == 1 else y for y in shares], share.dim)
    if share.kind in ("term", "mean"):
        return sum(shares)
    for other in shares[1:]:
        assert_close(torch, other, shares[0], "parts that must be the same")
    return shares[0]


def assert_close(torch: Any, got: Any, expected: Any, label: str) -> None:
    """Both are sums of float64 in some order: half of the digits of the largest number are reliable."""
    if expected.element_size() == 1:
        got, expected = got.view(torch.uint8), expected.view(torch.uint8)
    limit = 0.0
    if expected.is_floating_point() and expected.numel():
        finite = expected.detach()[expected.isfinite()].abs()
        limit = math.sqrt(torch.finfo(expected.dtype).eps) * float(finite.max() if finite.numel() else 0.0)
    torch.testing.assert_close(got, expected, rtol=0, atol=limit, equal_nan=True, msg=lambda text: f"{label}: {text}")
