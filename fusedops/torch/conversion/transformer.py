"""torch.nn's TransformerEncoderLayer and TransformerDecoderLayer, with dropout, sum and norm in one pass.

Masks reach the attention unchanged: torch's encoder layer converts them to numbers, which no kernel accepts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedops.torch.conversion.hf.dense import activated
from fusedops.torch.conversion.hf.residual import add, add_norm
from fusedops.torch.nn.layer import FusedLayer, unfused_input

_BLOCKS = ("_sa_block", "_mha_block", "_ff_block")


class _Layer(FusedLayer, torch.nn.Module):
    norm_first: bool

    def why_not(self, *inputs: Any) -> str | None:
        changed = next((name for name in _BLOCKS if name in vars(self)), None)
        if changed:
            return f"its {changed} is an attribute of its own, set by user code"
        return unfused_input(inputs[0]) if inputs else None

    def _attention(self, attention: Any, x: Tensor, of: Tensor, mask: Any, padding: Any, is_causal: bool) -> Tensor:
        result: Tensor = attention(
            x, of, of, attn_mask=mask, key_padding_mask=padding, need_weights=False, is_causal=is_causal
        )[0]
        return result

    def _feed_forward(self, x: Tensor) -> Tensor:
        layer: Any = self
        y: Tensor = layer.linear2(layer.dropout(activated(layer.activation, layer.linear1, x)))
        return y


class TransformerEncoderLayer(_Layer, torch.nn.TransformerEncoderLayer):
    """Fused in training. In evaluation torch has its own fast path for the whole layer."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if not self.training or self.why_not(src):
            return self.otherwise(super().forward, src, src_mask, src_key_padding_mask, is_causal)
        x = self.norm1(src) if self.norm_first else src
        attended = self._attention(self.self_attn, x, x, src_mask, src_key_padding_mask, is_causal)
        if self.norm_first:
            x, s = add_norm(self.norm2, attended, src, self.dropout1)
            return add(self._feed_forward(x), s, self.dropout2)
        x, _ = add_norm(self.norm1, attended, src, self.dropout1)
        return add_norm(self.norm2, self._feed_forward(x), x, self.dropout2)[0]


class TransformerDecoderLayer(_Layer, torch.nn.TransformerDecoderLayer):
    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        of_self = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        of_memory = (memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.why_not(tgt):
            masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
            return self.otherwise(super().forward, tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        x = self.norm1(tgt) if self.norm_first else tgt
        attended = self._attention(self.self_attn, x, x, *of_self)
        if self.norm_first:
            x, s = add_norm(self.norm2, attended, tgt, self.dropout1)
            x, s = add_norm(self.norm3, self._attention(self.multihead_attn, x, memory, *of_memory), s, self.dropout2)
            return add(self._feed_forward(x), s, self.dropout3)
        x, _ = add_norm(self.norm1, attended, tgt, self.dropout1)
        x, _ = add_norm(self.norm2, self._attention(self.multihead_attn, x, memory, *of_memory), x, self.dropout2)
        return add_norm(self.norm3, self._feed_forward(x), x, self.dropout3)[0]
