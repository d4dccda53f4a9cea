"""Normalizations."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

import fusedops.torch as fo
from fusedops.torch.conversion.hf.layer import HFLayer, stays_half
from fusedops.torch.internals import shape
from fusedops.torch.nn.layer import (
    REFUSED,
    have_equal_types,
    is_left_to_compiler,
    is_mixed,
    is_plain,
    mixed_dtypes,
    parameter,
    unfused_input,
    unfused_norm,
    unfused_pass,
)

_is_compiling = torch.compiler.is_dynamo_compiling


class _Norm(HFLayer):
    """A norm of the last dimension. It rounds once, where the original may also round before the weight's product."""

    has_input_dtype: ClassVar[bool] = False  # True if the result has the input's dtype for any dtype of the weight
    can_add: ClassVar[bool] = False  # True if `fused_add` may replace a sum and a call
    fixed_eps: ClassVar[float]  # eps, if it is no attribute of the module
    weight_offset: ClassVar[float] = 0.0

    @property
    def _eps(self) -> float:
        return self.part("eps") if "eps" in self.names else self.fixed_eps

    def _parameter(self, role: str) -> torch.Tensor | None:
        name = self.names.get(role)
        if name is None:
            return None
        return getattr(self, name) if _is_compiling() else parameter(self, name)

    def is_plain(self, x: Any) -> bool:
        """True if the operator may be called at once with x, as in `layer.is_plain`."""
        if not is_plain(x):
            return False
        weight, bias, dtype = self._parameter("weight"), self._parameter("bias"), x.dtype
        return (weight is None or weight.dtype is dtype) and (bias is None or bias.dtype is dtype)

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return super().why_not()
        x, weight, bias = inputs[0], self._parameter("weight"), self._parameter("bias")
        unfused = unfused_pass(x)
        if unfused:
            return unfused
        if any(shape(row) != shape(x)[-1:] for row in (weight, bias) if row is not None):
            return "its weight or bias is spread over the features"
        if weight is not None and weight.dtype is not x.dtype and not self._fits(x, weight):
            return mixed_dtypes(x, weight)
        if weight is not None and bias is not None and bias.dtype is not weight.dtype:
            return "the weight and the bias have two dtypes"
        return None

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        # An overridden __call__ may do more than the forward.
        return {"can_add": hasattr(cls, "fused_add") and kind.__call__ is torch.nn.Module.__call__}

    def _fits(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """True if the kernel's result has the original's dtype although x and the weight differ in dtype."""
        return is_mixed(x, weight) if self.has_input_dtype else stays_half(x, weight)

    def unfused(self) -> str | None:
        if not isinstance(self._eps, float | int):
            return f"its {self.names['eps']} is no number"
        for role in ("weight", "bias"):
            row = self._parameter(role)
            if row is not None and (not isinstance(row, torch.Tensor) or row.dim() != 1):
                return f"its {self.names[role]} is not one row"
        if "shape" in self.names and len(self.part("shape")) != 1:
            return "it normalizes more than one dimension"
        return None

    def _original(self, *inputs: Any) -> torch.Tensor:
        return self.original.forward(self, *inputs)  # type: ignore[attr-defined]


class _NormAlone(_Norm):
    """A norm with x as its only input."""

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_left_to_compiler(x):
            return self._original(x)
        if self.is_plain(x):
            try:
                return self._normalized(x)
            except REFUSED:
                pass  # the code below finds the reason
        return self._original(x) if self.why_not(x) else self._normalized(x)


class _RMSNorm(_Norm):
    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        return fo.rms_norm(x, self._parameter("weight"), eps=self._eps, weight_offset=self.weight_offset)


class RMSNorm(_RMSNorm, _NormAlone):
    """(weight + offset) · x / rms(x)."""

    def fused_add(
        self, x: torch.Tensor, residual: torch.Tensor, dropout: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(self(s), s) with s = dropout(x) + residual, in one pass. No hooks run, and the kernel must support x."""
        weight, offset = self._parameter("weight"), self.weight_offset
        return fo.add_rms_norm(x, residual, weight, eps=self._eps, weight_offset=offset, dropout=dropout)

    plain_add = fused_add

    def fused_rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> torch.Tensor:
        """rope(self(x), cos, sin) in one pass. No hooks run, and the kernel must support x."""
        weight, offset = self._parameter("weight"), self.weight_offset
        return fo.rms_norm_rope(x, weight, cos, sin, eps=self._eps, weight_offset=offset, **options)


class OptionalRMSNorm(RMSNorm):
    """weight · x / rms(x), or x / rms(x) if `with_scale` is False."""

    optional = ("weight",)

    def _parameter(self, role: str) -> torch.Tensor | None:
        return super()._parameter(role) if role != "weight" or self.part("with_scale") else None


class RMSNormThenGate(_RMSNorm):
    """act(gate) · weight · x / rms(x), as in Gated DeltaNet."""

    def unfused(self) -> str | None:
        if self.part("activation") not in ("silu", "swish"):
            return f"its {self.names['activation']} is {self.part('activation')!r}, not 'silu'"
        return super().unfused()

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if self.why_not(x) or not have_equal_types(x, gate):
            return self._original(x, gate)
        return fo.gated_act(gate, self._normalized(x), "silu")


class GateThenRMSNorm(_RMSNorm):
    """weight · y / rms(y) with y = silu(gate) · x, as in Mamba 2."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        if self.why_not(x) or not (gate is None or have_equal_types(x, gate)):
            return self._original(x, gate)
        return self._normalized(x if gate is None else fo.gated_act(gate, x, "silu"))


class GateThenGroupedRMSNorm(GateThenRMSNorm):
    """GateThenRMSNorm with a root mean square per group of features."""

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        size = self.part("group_size")
        if size == x.shape[-1]:
            return super()._normalized(x)
        groups = x.reshape(*x.shape[:-1], -1, size)
        return self.part("weight") * fo.rms_norm(groups, eps=self._eps).flatten(-2)


class LayerNorm(_NormAlone):
    """(x − mean) / deviation · (weight + offset) + bias."""

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        return fo.layer_norm(x, self._factor(), self._parameter("bias"), eps=self._eps)

    def _factor(self) -> torch.Tensor | None:
        weight = self._parameter("weight")
        return weight + self.weight_offset if weight is not None and self.weight_offset else weight

    def fused_add(
        self, x: torch.Tensor, residual: torch.Tensor, dropout: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As in `RMSNorm`."""
        return fo.add_layer_norm(x, residual, self._factor(), self._parameter("bias"), eps=self._eps, dropout=dropout)

    plain_add = fused_add


class ChannelsLayerNorm(HFLayer):
    """A torch.nn.LayerNorm with a second layout, [B, features, H, W]."""

    normalized_shape: tuple[int, ...]
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float

    def unfused(self) -> str | None:
        return None if len(self.normalized_shape) == 1 else "it normalizes more than one dimension"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.part("data_format") == "channels_first":
            return self._normalized(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self._normalized(x)

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        if unfused_input(x) or unfused_norm(x, self.weight):
            return torch.nn.LayerNorm.forward(self, x)
        return fo.layer_norm(x, self.weight, self.bias, eps=self.eps)
