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
from fusedops.functions.common import MAX_FEATURES, Reduction
from fusedops.torch.nn.attention import takes_mask
from fusedops.torch.nn.layer import as_original, is_cast, unfused_input, unfused_pass
from fusedops.torch.nn.losses import of_classes, unfused_class_weight, unfused_target
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
    is_known = size_average is None and reduce is None and reduction in ("mean", "sum", "none")
    if (
        not is_known
        or unfused_class_weight(weight)
        or unfused_target(target)
        or not isinstance(input, Tensor)
        or unfused_input(input)
    ):
        return functional.cross_entropy(input, target, *rest)
    try:
        loss = of_classes(input, target, weight, ignore_index, label_smoothing, reduction)
    except RuntimeError as error:
        return as_original(error, functional.cross_entropy, input, target, *rest)
    return loss if is_cast(input) else loss.to(input.dtype)  # under autocast both are float32


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    is_known = _is_attended(query, key, value, attn_mask, enable_gqa)
    is_known = is_known and not (is_causal and (attn_mask is not None or query.shape[-2] != key.shape[-2]))
    if not is_known or not isinstance(scale, float | int | None) or not 0 <= dropout_p < 1:
        rest = (attn_mask, dropout_p, is_causal)
        return functional.scaled_dot_product_attention(query, key, value, *rest, scale=scale, enable_gqa=enable_gqa)
    # The result has the memory layout of torch's fused kernels: positions before heads.
    rows = (x.transpose(-3, -2) for x in (query, key, value))
    is_bool = attn_mask is not None and attn_mask.dtype is torch.bool
    mask, bias = (attn_mask, None) if is_bool else (None, attn_mask)
    options: dict[str, Any] = {"causal": is_causal, "scale": scale, "dropout": dropout_p}
    return fo.attention(*rows, mask=mask, bias=bias, **options).transpose(-3, -2)


KERNELS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.cross_entropy: cross_entropy,
    functional.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    functional.scaled_dot_product_attention: scaled_dot_product_attention,
    functional.softmax: softmax,
}


def _fits(x: Any) -> bool:
    return isinstance(x, Tensor) and not unfused_pass(x) and not is_cast(x)


def _is_attended(query: Any, key: Any, value: Any, mask: Any, shares_keys: bool) -> bool:
    """True if the attention kernel takes these tensors [..., heads, positions, features] without broadcasting them."""
    tensors = (query, key, value)
    if not all(isinstance(x, Tensor) and x.dim() == query.dim() >= 3 and not unfused_input(x) for x in tensors):
        return False
    if not query.dtype is key.dtype is value.dtype or max(query.shape[-1], value.shape[-1]) > MAX_FEATURES:
        return False
    if mask is not None and (mask.dim() > query.dim() or not takes_mask(query, mask)):
        return False
    heads, key_heads = query.shape[-3], key.shape[-3]
    is_shared = heads == key_heads or (shares_keys and key_heads > 0 and heads % key_heads == 0)
    has_pairs = key.shape[:-1] == value.shape[:-1] and query.shape[-1] == key.shape[-1] > 0
    return is_shared and has_pairs and query.shape[:-3] == key.shape[:-3]


def _is_normed(x: Any, shape: Sequence[int], eps: Any, *parameters: Tensor | None) -> bool:
    """True if the shape is x's last dimension, parameters have that shape and x's dtype, and eps is a number."""
    if not _fits(x) or isinstance(eps, Tensor) or x.dim() == 0 or tuple(shape) != tuple(x.shape[-1:]):
        return False
    return all(p is None or (p.dtype is x.dtype and p.shape == x.shape[-1:]) for p in parameters)
