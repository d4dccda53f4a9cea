"""The experts of transformers' mixtures, whose matrices are stacked in one tensor."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

import fusedops.torch as fo
from fusedops.conversion import UnknownClass
from fusedops.torch.conversion.hf import internals
from fusedops.torch.conversion.hf.activations import fused_name, must_call, unfused_activation
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.nn.linear import unfused_product

# transformers' own names. Another one is the choice of user code.
_IMPLEMENTATIONS = (None, "eager", "grouped_mm", "batched_mm")


class Experts(HFLayer):
    """A class with transformers' `use_experts_implementation`, whose code of the gate is known."""

    fixed: ClassVar[str | None] = None  # name of the activation in torch.nn.functional, if it is no attribute
    interleaved: ClassVar[bool] = False
    shift: ClassVar[float] = 0.0
    computes = ("activation",)

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        closure = getattr(vars(kind).get("forward"), "__closure__", None) or ()
        if not any(cell.cell_contents is internals.ALL_EXPERTS_FUNCTIONS for cell in closure):
            raise UnknownClass("its forward does not select one of transformers' implementations of experts")
        return {}

    @property
    def _activation(self) -> Any:
        return getattr(functional, self.fixed) if self.fixed else self.part("activation")

    def unfused(self) -> str | None:
        name = getattr(self.config, "_experts_implementation", None)
        if name not in _IMPLEMENTATIONS:
            return f"experts_implementation is {name!r}, which was chosen by user code"
        if not self.has_gate or self.has_post_expert_norm:
            return "its experts have no gate" if not self.has_gate else "a norm follows each expert"
        return unfused_activation(self._activation)

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return super().why_not()
        x, _, weight = inputs
        if must_call(self._activation):
            return "its activation has hooks"
        if reason := unfused_product(x, self.gate_up_proj):
            return reason
        if weight.dtype not in (x.dtype, torch.float32):
            return f"the router's weights are {weight.dtype} beside an input of {x.dtype}"
        return None

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        name = fused_name(self._activation)
        if name is None or self.why_not(x, index, weight):
            return self.original.forward(self, x, index, weight)  # type: ignore[attr-defined]
        return fo.experts(
            x,
            index,
            weight,
            self.gate_up_proj,
            self.down_proj,
            activation=name,
            gate_up_bias=self.gate_up_proj_bias if self.has_bias else None,
            down_bias=self.down_proj_bias if self.has_bias else None,
            transpose_weight=not self.is_transposed,
            interleaved=self.interleaved,
            limit=self._number("limit", 0.0),
            alpha=self._number("alpha", 1.0),
            shift=self.shift,
        )

    def _number(self, role: str, default: float) -> float:
        return self.part(role) if role in self.names else default
