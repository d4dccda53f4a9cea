"""PyTorch's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import plain
import torch
from torch import Tensor
from torch.nn import functional


def matmul(a: Tensor, b: Tensor, *, transpose_b: bool = False) -> Tensor:
    return a @ (b.mT if transpose_b else b)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


add_rms_norm = plain.of_sum(rms_norm)


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, seq_dim: int) -> Tensor:
    return torch.cat(plain.rotated(*x.chunk(2, -1), cos, sin, seq_dim), -1)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def swiglu(packed: Tensor) -> Tensor:
    gate, up = packed.chunk(2, -1)
    return functional.silu(gate) * up


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
