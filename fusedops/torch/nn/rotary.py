"""Rotary embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

import fusedops.torch as fo
from fusedops.torch import internals
from fusedops.torch.nn.layer import FusedLayer, joined, options


class RotaryEmbedding(FusedLayer, nn.Module):
    """Rotates each pair of features (i, i + dim/2) of a position by an angle: `fusedops.torch.rope`.

    The angle of pair i at position p is p · base^(−2i/dim).

    Args:
        dim: the number of rotated features, even; the features after them pass unchanged.
        max_seq_len: the number of positions in the tables.
        base: of the angles.
        interleaved: True if pair i is features 2i and 2i + 1.
        seq_dim: the dimension of x that holds the positions, -3 or -2.
        device: of the tables.
        dtype: float64 for tables of float64; otherwise they are float32.

    Buffers:
        cos, sin: [max_seq_len, dim/2], not in the state dict. Moving the layer to another device or dtype computes them
            again: they are never rounded to 16 bits.

    Call arguments:
        x: [..., T, H, D]; with `seq_dim=-2` [..., T, D], such as [B, H, T, D]. float32, float16 or bfloat16; float64
            with tables of float64.
        positions: int64 or int32 in [0, max_seq_len), [T] or, for x of [B, T, H, D], [B, T]; None: 0 to T - 1.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        ValueError: `dim` is odd or not positive; x has more than max_seq_len positions.
        RuntimeError: an argument has the wrong shape or dtype.

    Example:
        >>> x = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])  # two positions of one head
        >>> fnn.RotaryEmbedding(2)(x)
        tensor([[[1.0000, 0.0000]],
        <BLANKLINE>
                [[0.5403, 0.8415]]])

    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        dim: int,
        max_seq_len: int = 4096,
        base: float = 10000.0,
        *,
        interleaved: bool = False,
        seq_dim: int = -3,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim <= 0 or dim % 2:
            raise ValueError(f"fusedops.torch.nn.RotaryEmbedding: dim must be a positive, even number; got {dim}")
        self.dim = dim
        self.max_seq_len = max_seq_len
        self.base = base
        self.interleaved = interleaved
        self.seq_dim = seq_dim
        for table in ("cos", "sin"):
            empty = torch.empty(max_seq_len, dim // 2, device=device, dtype=dtype)
            self.register_buffer(table, empty, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Computes the tables on their device, in float64: a large angle in float32 has too few bits for its cosine."""
        device = self.cos.device
        dtype = torch.float64 if self.cos.dtype == torch.float64 else torch.float32
        pairs = torch.arange(0, self.dim, 2, device=device, dtype=torch.float64)
        positions = torch.arange(self.max_seq_len, device=device, dtype=torch.float64)
        angles = torch.outer(positions, self.base ** (-pairs / self.dim))
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.reset_parameters()  # also after to_empty and skip_init
        return self

    def extra_repr(self) -> str:
        given = options(self, max_seq_len=4096, base=10000.0, interleaved=False, seq_dim=-3)
        return joined(str(self.dim), given)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if internals.is_symbol(x):
            return self.otherwise(self._refuse_as_root, x, positions)
        if positions is None:
            cos, sin = self._first(x)
        else:
            cos, sin = (nn.functional.embedding(positions, table) for table in (self.cos, self.sin))
        return fo.rope(x, cos, sin, seq_dim=self.seq_dim, interleaved=self.interleaved)

    def _refuse_as_root(self, *_: Any) -> Tensor:
        raise TypeError("fusedops.torch.nn.RotaryEmbedding: torch.fx can record it only as a part of another module")

    def _first(self, x: Any) -> tuple[Tensor, Tensor]:
        """The tables for positions from 0 on; whole tables for inputs that the operator refuses."""
        if not isinstance(x, Tensor) or x.dim() < -self.seq_dim:
            return self.cos, self.sin
        length = x.shape[self.seq_dim]
        if length > self.max_seq_len:
            raise ValueError(
                f"fusedops.torch.nn.RotaryEmbedding: x must have at most max_seq_len = {self.max_seq_len} positions; "
                f"got {length}"
            )
        return self.cos[:length], self.sin[:length]
