"""Multi-head attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fusedops.torch as fo
from fusedops.functions.common import MAX_FEATURES
from fusedops.torch.nn.layer import FusedLayer, as_original, mixed_dtypes, name, unfused_input


def takes_mask(query: Tensor, mask: Tensor) -> bool:
    """True if the kernel takes a mask of booleans, or of numbers of this dtype, beside the query."""
    is_narrow = query.dtype in (torch.float16, torch.bfloat16)
    return mask.dtype in (torch.bool, query.dtype) or (is_narrow and mask.dtype is torch.float32)


class MultiheadAttention(FusedLayer, nn.MultiheadAttention):
    """softmax(q kᵀ / √D, masked) v for each head, between projections: `fusedops.torch.attention`.

    The arguments, the parameters and the state dict are those of `torch.nn.MultiheadAttention`. The kernel computes the
    attention where its weights are not asked for: call the layer with `need_weights=False`.

    Call arguments:
        query: [T, B, E], or [B, T, E] with `batch_first=True`, or [T, E]; float64, float32, float16 or bfloat16.
        key, value: [S, B, kdim] and [S, B, vdim], laid out as the query.
        key_padding_mask: bool [B, S]; True leaves a key out. Or numbers, which are added to the scores.
        need_weights: whether the weights are returned, too. torch's own code computes them.
        attn_mask: bool [T, S] or [B · num_heads, T, S]; True leaves a key out for a query. Or numbers.
        average_attn_weights: as in torch.
        is_causal: says that attn_mask is the causal mask, which is then not read where T and S are the same.

    Returns:
        The output, of the query's shape with E features, and the weights, or None. A query of which all keys are left
        out gets zeros of the attention, where torch's is NaN or zeros, depending on the kernel that it chooses.

    Raises:
        RuntimeError: an argument has the wrong shape or dtype, or a call inside torch's context_parallel has a mask.

    In training, `dropout` drops weights by the kernel's own random numbers: others than torch's, from a seed that
    torch's generator draws. torch's own code handles all else: weights that are returned, `add_bias_kv`,
    `add_zero_attn`, heads of more than 576 features, other dtypes, devices and layouts.

    Example:
        >>> attention = fnn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.ones(1, 3, 8)
        >>> attention(x, x, x, need_weights=False)[0].shape
        torch.Size([1, 3, 8])
        >>> attention.why_not(x, x, x)
        'the weights are asked for: need_weights is True'

    Source: Vaswani et al., "Attention is all you need", 2017.
    """

    def why_not(self, *inputs: Any, **options: Any) -> str | None:
        """As of every layer; `options` are those that the layer is called with by name."""
        if self.bias_k is not None:
            return "add_bias_kv is True"
        if self.add_zero_attn:
            return "add_zero_attn is True"
        if self.head_dim > MAX_FEATURES:
            return f"a head has {self.head_dim} features; the kernel takes up to {MAX_FEATURES}"
        return self._unfused_call(*inputs, **options) if inputs else None

    def _unfused_call(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> str | None:
        if need_weights:
            return "the weights are asked for: need_weights is True"
        for x in (query, key, value):
            if unfused := unfused_input(x):
                return unfused
        if query.dim() not in (2, 3):
            return f"the query has {query.dim()} dimensions"
        if (query.shape[-1], key.shape[-1], value.shape[-1]) != (self.embed_dim, self.kdim, self.vdim):
            return "the inputs have other widths than the layer"  # torch says which
        weight = self.out_proj.weight
        is_cast = torch.is_autocast_enabled(query.device.type)
        if not is_cast and any(x.dtype is not weight.dtype for x in (query, key, value)):
            return mixed_dtypes(query, weight)
        if key_padding_mask is not None and not takes_mask(query, key_padding_mask):
            return f"key_padding_mask is {name(key_padding_mask.dtype)} beside a query of {name(query.dtype)}"
        if _is_square(query, key, self.batch_first) and is_causal and attn_mask is not None:
            return None
        if is_causal:
            return "is_causal is True, but there is no square attn_mask"
        if attn_mask is not None and not takes_mask(query, attn_mask):
            return f"attn_mask is {name(attn_mask.dtype)} beside a query of {name(query.dtype)}"
        return None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        given = (query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if self.why_not(*given):
            return self.otherwise(super().forward, *given)
        try:
            q, k, v = (self._heads(x) for x in self._projected(query, key, value))
            mask, bias = self._combined(None if is_causal else attn_mask, key_padding_mask)
            dropout = self.dropout if self.training else 0.0
            y = fo.attention(q, k, v, causal=is_causal, mask=mask, bias=bias, dropout=dropout).flatten(-2)
        except RuntimeError as error:
            as_original(error, super().forward, *given)
            raise
        if query.dim() == 2:
            y = y[0]
        elif not self.batch_first:
            y = y.transpose(0, 1)
        return functional.linear(y, self.out_proj.weight, self.out_proj.bias), None

    def _combined(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The mask of visible keys and the bias of torch's masks, which are booleans or numbers each."""
        mask: Tensor | None = None
        bias: Tensor | None = None
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.reshape(-1, self.num_heads, *attn_mask.shape[1:])
            mask, bias = (~attn_mask, None) if attn_mask.dtype is torch.bool else (None, attn_mask)
        if key_padding_mask is not None:
            of_keys = key_padding_mask.reshape(-1, 1, 1, key_padding_mask.shape[-1])
            if of_keys.dtype is torch.bool:
                mask = ~of_keys if mask is None else mask & ~of_keys
            else:
                bias = of_keys if bias is None else bias + of_keys
        return mask, bias

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values before the split into heads; for a single input, views of one product's result."""
        bias = self.in_proj_bias
        if self.in_proj_weight is not None and query is key is value:
            return functional.linear(query, self.in_proj_weight, bias).chunk(3, -1)
        weights: tuple[Tensor, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return tuple(map(functional.linear, (query, key, value), weights, biases))

    def _heads(self, x: Tensor) -> Tensor:
        """[B, positions, heads, D]."""
        x = x.view(*x.shape[:-1], self.num_heads, self.head_dim)
        if x.dim() == 3:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)


def _is_square(query: Tensor, key: Tensor, batch_first: bool) -> bool:
    """True if there are as many queries as keys."""
    dim = 1 if batch_first and query.dim() == 3 else 0
    return query.shape[dim] == key.shape[dim]
