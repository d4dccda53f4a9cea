"""The PyTorch layers under test: a table of calls, each with the torch layer that is its reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers.frameworks import Backend
from tests.helpers.numerics import numbers

Arrays = Sequence[np.ndarray]


def of_shapes(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    return lambda random: [numbers(shape, random) for shape in shapes]


def masked(random: np.random.Generator) -> Arrays:
    """Numbers, and a mask of the elements to include: one row has none."""
    kept = random.random((5, 7)) < 0.6
    kept[2] = False
    return [numbers((3, 5, 7), random), kept]


def classified(
    shape: tuple[int, ...], random: np.random.Generator, dtype: str = "int64", ignored: int = -100
) -> Arrays:
    """Logits with the classes in torch's dimension, and labels, some of which are ignored."""
    of_labels = shape[:1] + shape[2:] if len(shape) > 1 else ()
    labels = random.integers(0, shape[1] if len(shape) > 1 else shape[0], of_labels)
    if labels.ndim:
        labels.flat[::3] = ignored
    return [numbers(shape, random), np.asarray(labels, dtype)]


def of_rows(classes: int, shape: tuple[int, ...], random: np.random.Generator) -> Arrays:
    """Inputs of a linear layer that gives logits, and labels, some of which are ignored."""
    labels = random.integers(0, classes, shape[:-1])
    labels.flat[::3] = -100
    return [numbers(shape, random), labels]


def routed(experts: int, shape: tuple[int, ...], random: np.random.Generator) -> Arrays:
    """Tokens, their two experts, of which one of all is out of range, and the weights of these."""
    index = random.integers(0, experts, (*shape[:-1], 2))
    index.flat[0] = experts
    return [numbers(shape, random), index, numbers(index.shape, random)]


def positioned(shape: tuple[int, ...], of_positions: tuple[int, ...], random: np.random.Generator) -> Arrays:
    return [numbers(shape, random), random.integers(0, 64, of_positions)]


_ONE = of_shapes((4, 6, 8))


@dataclass(frozen=True)
class Case:
    """A layer, its arguments, and the inputs of its call."""

    layer: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[np.random.Generator], Arrays] = _ONE
    stored: int = 0  # roundings of intermediate values to the inputs' dtype

    def __str__(self) -> str:
        values = [*map(str, self.arguments), *(f"{key}={value}" for key, value in self.options.items())]
        return "-".join([self.layer, *values, "x".join(map(str, self.arrays(np.random.default_rng(0))[0].shape))])

    @property
    def has_device(self) -> bool:
        """True if the layer takes a device and a dtype."""
        return self.layer not in ("Softmax", "SwiGLU", "GEGLU", "CrossEntropyLoss")

    @property
    def is_torch(self) -> bool:
        """True if torch.nn has a layer of this name and these options."""
        return self.layer in ("RMSNorm", "LayerNorm", "Softmax", "CrossEntropyLoss", "Linear") and not (
            self.options.keys() & {"weight_offset", "scale", "causal", "activation", "z_loss"}
        )

    @property
    def is_linear(self) -> bool:
        return self.layer in ("Linear", "GatedLinear", "Experts")

    @property
    def is_random(self) -> bool:
        """True if its parameters are random initially."""
        return "Linear" in self.layer or self.layer == "Experts"

    @property
    def has_parts(self) -> bool:
        return self.layer in ("GatedLinear", "LinearCrossEntropyLoss")

    def arrays(self, random: np.random.Generator) -> Arrays:
        return self.inputs(random)

    def tensors(self, backend: Backend, dtype: str, random: np.random.Generator) -> list[Any]:
        return [backend.tensor(array, dtype) for array in self.arrays(random)]


_TWO = of_shapes((4, 6, 8), (4, 6, 8))
_HEADS = of_shapes((2, 5, 3, 8))
# s is rounded before it is normalized, which moves each deviation and their root mean square.
_ADDED = 3
# Its backward reads the rounded result: as a factor, and in the sum over the row.
_SOFTMAX = 3
# Both factors are rounded, and then the terms of their gradients.
_GATED = 3
# Gates, ups, gated values and results are rounded, and then their gradients.
_EXPERTS = 5
# z and dz are rounded.
_ACTIVATED = 2
_of = functools.partial

CASES = (
    Case("RMSNorm", (8,)),
    Case("RMSNorm", (33,), {"eps": 0.5}, of_shapes((5, 33))),
    Case("RMSNorm", ([6, 8],)),
    Case("RMSNorm", ((6, 8),), {"elementwise_affine": False}),
    Case("RMSNorm", (8,), {"elementwise_affine": False}),
    Case("RMSNorm", (8,), {"weight_offset": 1.0, "eps": 1e-6}),
    Case("LayerNorm", (8,)),
    Case("LayerNorm", (33,), {"eps": 0.5}, of_shapes((5, 33))),
    Case("LayerNorm", ([6, 8],)),
    Case("LayerNorm", (8,), {"bias": False}),
    Case("LayerNorm", ((4, 6, 8),), {"elementwise_affine": False}),
    Case("AddRMSNorm", (8,), {}, _TWO, _ADDED),
    Case("AddRMSNorm", ((6, 8),), {"weight_offset": 1.0}, _TWO, _ADDED),
    Case("AddLayerNorm", (8,), {}, _TWO, _ADDED),
    Case("AddLayerNorm", ((6, 8),), {"bias": False}, _TWO, _ADDED),
    Case("Softmax", (-1,), {}, stored=_SOFTMAX),
    Case("Softmax", (1,), {}, of_shapes((5, 33)), _SOFTMAX),
    Case("Softmax", (-1,), {"scale": 0.3}, masked, _SOFTMAX),
    Case("Softmax", (-1,), {"causal": True}, masked, _SOFTMAX),
    Case("SwiGLU", (), {}, _TWO),
    Case("SwiGLU"),
    Case("GEGLU", (), {}, _TWO),
    Case("GEGLU", ("tanh",)),
    Case("BiasGELU", (8,)),
    Case("BiasGELU", (33,), {"approximate": "tanh"}, of_shapes((5, 33))),
    Case("Linear", (8, 5)),
    Case("Linear", (33, 16), {"bias": False, "activation": "gelu_tanh"}, of_shapes((5, 33)), _ACTIVATED),
    Case("GatedLinear", (8, 5), {}, stored=_GATED),
    Case("GatedLinear", (33, 16), {"bias": True, "activation": "gelu"}, of_shapes((5, 33)), _GATED),
    Case("Experts", (4, 8, 5), {}, _of(routed, 4, (4, 6, 8)), _EXPERTS),
    Case(
        "Experts",
        (3, 8, 4),
        {"bias": True, "limit": 50.0, "alpha": 1.7, "shift": 1.0, "interleaved": True},
        _of(routed, 3, (9, 8)),
        _EXPERTS,
    ),
    Case("CrossEntropyLoss", (), {}, _of(classified, (9, 33))),
    Case("CrossEntropyLoss", (), {"label_smoothing": 0.1}, _of(classified, (33,))),
    Case("CrossEntropyLoss", (), {"reduction": "none"}, _of(classified, (4, 33, 5))),
    Case("CrossEntropyLoss", (), {"reduction": "sum", "ignore_index": 2}, _of(classified, (2, 5, 3, 4), ignored=2)),
    Case("CrossEntropyLoss", (), {"label_smoothing": 0.1, "z_loss": 0.2}, _of(classified, (4, 33, 5))),
    Case("LinearCrossEntropyLoss", (8, 33), {}, _of(of_rows, 33, (4, 6, 8)), _ACTIVATED),
    Case("LinearCrossEntropyLoss", (8, 5), {"bias": True, "softcap": 2.0}, _of(of_rows, 5, (9, 8)), _ACTIVATED),
    Case(
        "LinearCrossEntropyLoss",
        (8, 5),
        {"reduction": "none", "label_smoothing": 0.1, "z_loss": 0.2},
        _of(of_rows, 5, (2, 3, 8)),
        _ACTIVATED,
    ),
    Case("RotaryEmbedding", (8, 64), {}, _HEADS),
    Case("RotaryEmbedding", (6,), {"base": 50.0}, _HEADS),
    Case("RotaryEmbedding", (8, 64), {"interleaved": True, "seq_dim": -2}, _HEADS),
    Case("RotaryEmbedding", (8, 64), {}, _of(positioned, (2, 5, 3, 8), (5,))),
    Case("RotaryEmbedding", (8, 64), {"seq_dim": -2}, _of(positioned, (2, 3, 5, 8), (2, 5))),
)


def ours(case: Case, **more: Any) -> Any:
    import fusedops.torch as fo

    return getattr(fo.nn, case.layer)(*case.arguments, **case.options, **more)


def reference(case: Case, **more: Any) -> Any:
    """A torch layer, or one of the plain formula, with the same parameters."""
    import torch

    from tests.helpers import torch_references

    made_of = torch.nn if case.is_torch or not hasattr(torch_references, case.layer) else torch_references
    return getattr(made_of, case.layer)(*case.arguments, **case.options, **more)


def set_random_parameters(layers: Sequence[Any], random: np.random.Generator) -> None:
    """Sets the same parameters in all layers."""
    import torch

    for name, parameter in layers[0].named_parameters():
        values = torch.from_numpy(numbers(parameter.shape, random))
        for layer in layers:
            layer.get_parameter(name).data.copy_(values)


def value_and_gradients(backend: Any, layer: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a layer, then the gradients of its inputs and parameters, for a random upstream gradient."""
    torch, random = backend.torch, np.random.default_rng(0)
    inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    result = layer(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    upstream = [backend.from_numpy(numbers(y.shape, random)).to(y.dtype) for y in outputs]
    wanted = [*(x for x in inputs if x.requires_grad), *layer.parameters()]
    return [*outputs, *torch.autograd.grad(outputs, wanted, upstream)]
