"""Functions of torch.nn.functional on fusedops's kernels, with torch's arguments and results.

Calls that a kernel does not support, or whose result has another dtype, go to torch's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fusedops.torch as fo
from fusedops.functions.common import Reduction
from fusedops.torch.nn.layer import as_original, is_cast, unfused_input, unfused_pass
from fusedops.torch.nn.losses import of_classes, unfused_target
from fusedops.torch.nn.normalization import default_eps


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    is_known = _fits(input) and dtype in (None, input.dtype)
    if not is_known or dim is None or input.dim() == 0 or dim not in (-1, input.dim() - 1):
        return functional.softmax(input, dim, _stacklevel, dtype)
    return fo.softmax(input)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if not _is_normed(input, normalized_shape, eps, weight, bias):
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)
    return fo.layer_norm(input, weight, bias, eps=eps)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if not _is_normed(input, normalized_shape, eps, weight):
        return functional.rms_norm(input, normalized_shape, weight, eps)
    return fo.rms_norm(input, weight, eps=default_eps(input) if eps is None else eps)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    rest = (weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    is_known = weight is None and size_average is None and reduce is None and reduction in ("mean", "sum", "none")
    if not is_known or unfused_target(target) or not isinstance(input, Tensor) or unfused_input(input):
        return functional.cross_entropy(input, target, *rest)
    try:
        loss = of_classes(input, target, ignore_index, label_smoothing, reduction)
    except RuntimeError as error:
        return as_original(error, functional.cross_entropy, input, target, *rest)
    return loss if is_cast(input) else loss.to(input.dtype)  # under autocast both are float32


KERNELS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.cross_entropy: cross_entropy,
    functional.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    functional.softmax: softmax,
}


def _fits(x: Any) -> bool:
    return isinstance(x, Tensor) and not unfused_pass(x) and not is_cast(x)


def _is_normed(x: Any, shape: Sequence[int], eps: Any, *parameters: Tensor | None) -> bool:
    """True if the shape is x's last dimension, parameters have that shape and x's dtype, and eps is a number."""
    if not _fits(x) or isinstance(eps, Tensor) or x.dim() == 0 or tuple(shape) != tuple(x.shape[-1:]):
        return False
    return all(p is None or (p.dtype is x.dtype and p.shape == x.shape[-1:]) for p in parameters)
