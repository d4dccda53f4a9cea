"""Root mean square normalization, which each family of models has under its own name."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

import fusedops.torch as fo
from fusedops.torch.conversion.hf.layer import HFLayer, stays_half
from fusedops.torch.nn.layer import is_mixed, of_two_dtypes, unfused_input


class RMSNorm(HFLayer):
    """weight · x / rms(x), rounded once where transformers rounds before the product as well."""

    needs = ("weight", "variance_epsilon")
    weight_offset: ClassVar[float] = 0.0

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return super().why_not()
        x = inputs[0]
        if not self._fits(x):
            return of_two_dtypes(x, self.weight)
        return unfused_input(x)

    def _fits(self, x: torch.Tensor) -> bool:
        return self.weight.dtype is x.dtype or stays_half(x, self.weight)

    @property
    def _eps(self) -> float:
        return self.variance_epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._normalized(hidden_states)

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        if self.why_not(x):
            return self.original.forward(self, x)  # type: ignore[attr-defined]
        return fo.rms_norm(x, self.weight, eps=self._eps, weight_offset=self.weight_offset)

    def fused_add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(self(s), s) with s = x + residual, in one pass; without hooks, and only for inputs that the kernel takes."""
        return fo.add_rms_norm(x, residual, self.weight, eps=self._eps, weight_offset=self.weight_offset)


class OffsetRMSNorm(RMSNorm):
    """(1 + weight) · x / rms(x), as in Gemma, whose result has the input's dtype whatever the weight's."""

    needs = ("weight", "eps")
    weight_offset = 1.0

    def _fits(self, x: torch.Tensor) -> bool:
        return self.weight.dtype is x.dtype or is_mixed(x, self.weight)

    @property
    def _eps(self) -> float:
        return self.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._normalized(x)
