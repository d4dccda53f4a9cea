"""Gated MLPs: the activation of one projection times another projection."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.nn import functional

import fusedops.torch as fo
from fusedops.torch.conversion.hf.activations import fused_name, is_activation, must_call, unfused_activation
from fusedops.torch.conversion.hf.layer import ONLY_ALIKE, HFLayer
from fusedops.torch.internals import shape
from fusedops.torch.nn.layer import REFUSED, is_plain, parameter, unfused_input, unfused_pass
from fusedops.torch.nn.linear import is_plain_linear, reason_to_call, takes_plain_product, takes_products
from fusedops.torch.nn.plans import gated_linear, prepared


class _Gated(HFLayer):
    first: ClassVar[tuple[str, ...]] = ()  # modules that are called before the projections
    fixed: ClassVar[str | None] = None  # name of the activation in torch.nn.functional, if it is no attribute
    computes = ("activation",)

    @property
    def _activation(self) -> Any:
        return getattr(torch.nn.functional, self.fixed) if self.fixed else self.part("activation")

    def unfused(self) -> str | None:
        if self.fixed:
            return None
        activation = self.part("activation")
        return unfused_activation(activation) if is_activation(activation) else ONLY_ALIKE


class GatedMLP(_Gated):
    """down(act(gate(x)) · up(x)), with the inner part in one pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.parts(self.first, x)
        return self.parts(self.then, gated_product(self._activation, self.part("gate"), self.part("up"), x))


class T5GatedMLP(GatedMLP):
    """A gated MLP with dropout, whose last projection may have another dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = gated_product(self._activation, self.part("gate"), self.part("up"), x)
        product, down = self.part("dropout")(product), self.part("down")
        if isinstance(down.weight, torch.Tensor) and down.weight.dtype not in (product.dtype, torch.int8):
            product = product.to(down.weight.dtype)
        return down(product)


class DroppedMLP(GatedMLP):
    """A gated MLP followed by a functional dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(GatedMLP.forward(self, x), p=self.part("dropout"), training=self.training)


class ClampedMLP(_Gated):
    """A gated MLP with clamped projections: the gate from above, the other on both sides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, limit = self.parts(self.first, x), self.part("limit")
        gate, up = self.part("gate")(x).clamp(max=limit), self.part("up")(x).clamp(-limit, limit)
        return self.parts(self.then, gated(self._activation, gate, up))


class ScaledMLP(_Gated):
    """A gated MLP whose gate and result are multiplied by numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = gated(self._activation, self.part("gate")(x) * self.part("gate_scale"), self.part("up")(x))
        return self.parts(self.then, product) * self.part("scale")


class GatedResidual(_Gated):
    """x + then(act(gate(x)) · y) for two inputs x and y."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + self.parts(self.then, gated(self._activation, self.part("gate")(x), y))


class PackedMLP(_Gated):
    """down(act(gate) · up), where one product computes gate and up side by side, as in Phi-3."""

    gate_is_first: ClassVar[bool] = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.part("packed")(self.parts(self.first, x))
        if self.gate_is_first:
            return self.parts(self.then, gated_halves(self._activation, packed))
        up, gate = packed.chunk(2, dim=-1)
        return self.parts(self.then, gated(self._activation, gate, up))


class LayeredMLP(_Gated):
    """A packed MLP whose projections may have weights for many layers, selected by `layer_idx`."""

    def forward(self, x: torch.Tensor, layer_idx: int | None = None) -> torch.Tensor:
        layer = () if layer_idx is None else (layer_idx,)
        return self.part("down")(gated_halves(self._activation, self.part("packed")(x, *layer)), *layer)


def gated_halves(activation: Any, packed: torch.Tensor) -> torch.Tensor:
    """act(gate) · up of the halves of the last dimension, with a packed gradient."""
    name = fused_name(activation)
    if name is None or unfused_pass(packed) or must_call(activation):
        gate, up = packed.chunk(2, dim=-1)
        return activation(gate) * up
    return fo.gated_act(packed, None, name)


def gated_product(activation: Any, gate: Any, up: Any, x: torch.Tensor) -> torch.Tensor:
    """act(gate(x)) · up(x), by one kernel with both products, unless hooks or subclasses forbid it."""
    name, plain = fused_name(activation), is_plain_linear(gate) and is_plain_linear(up)
    if name is not None and plain and is_plain(x):
        first, second = parameter(gate, "weight"), parameter(up, "weight")
        takes_both = takes_plain_product(first, x) and takes_plain_product(second, x)
        if takes_both and not (reason_to_call(gate, up) or must_call(activation)):
            try:
                return fo.gated_linear(x, first, second, parameter(gate, "bias"), parameter(up, "bias"), name)
            except REFUSED:
                pass  # the code below finds the reason
    has_operator = plain and not must_call(activation) and takes_products(x, gate, up)
    if name is not None and has_operator and shape(gate.weight) == shape(up.weight):
        return gated_linear(name, gate, up, x)
    x = prepared(x, gate, up) if plain else x
    return gated(activation, gate(x), up(x))


def gated(activation: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """act(gate) · up, by the kernel unless hooks or subclasses forbid it."""
    name = fused_name(activation)
    if name is None or unfused_pass(gate) or must_call(activation):
        return activation(gate) * up
    if not isinstance(up, torch.Tensor) or unfused_input(up):  # a number, or an unsupported tensor
        return activation(gate) * up
    if gate.dtype is not up.dtype or shape(gate) != shape(up):  # broadcast
        return activation(gate) * up
    return fo.gated_act(gate, up, name)
