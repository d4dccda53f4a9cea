"""A residual connection and the normalization of its sum, in one pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fusedops.torch.nn.normalization import LayerNorm, RMSNorm


def add_norm(
    norm: RMSNorm | LayerNorm, x: Tensor, residual: Tensor, of_sum: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """(norm(s), s) with s = x + residual, in one pass if both have one dtype, which autocast may change.

    `of_sum` computes what the kernel does not: the norm, from s.
    """
    mixed = isinstance(x, Tensor) and isinstance(residual, Tensor) and x.dtype is not residual.dtype
    if not mixed and norm.why_not(x) is None:
        return norm.fused_add(x, residual)
    s = x + residual
    return of_sum(s), s


class AddRMSNorm(RMSNorm):
    """(rms_norm(s), s) with s = x + residual: `fusedops.torch.add_rms_norm`.

    Called as `layer(x, residual)`, two tensors of one shape. Both results have the dtype of x + residual. Where x and
    residual have one dtype, s is rounded to it first and then normalized, in one pass; torch adds what differs.

    Arguments, parameters and state dict are those of `RMSNorm`, and so is what torch's own code computes.
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return add_norm(self, x, residual, super().forward)


class AddLayerNorm(LayerNorm):
    """(layer_norm(s), s) with s = x + residual: `fusedops.torch.add_layer_norm`.

    Called as `layer(x, residual)`, two tensors of one shape. Both results have the dtype of x + residual. Where x and
    residual have one dtype, s is rounded to it first and then normalized, in one pass; torch adds what differs.

    Arguments, parameters and state dict are those of `LayerNorm`, and so is what torch's own code computes.
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return add_norm(self, x, residual, super().forward)
