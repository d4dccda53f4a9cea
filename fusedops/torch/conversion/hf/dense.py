"""A linear layer and its activation, fused."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import fusedops.torch as fo
from fusedops.conversion import full_name
from fusedops.torch.conversion.hf.activations import fused_name, is_activation, must_call, unfused_activation
from fusedops.torch.conversion.hf.layer import ONLY_ALIKE, HFLayer, stays_half
from fusedops.torch.nn.layer import REFUSED, is_plain, parameter, unfused_input, unfused_pass
from fusedops.torch.nn.linear import is_plain_linear, reason_to_call, takes_plain_product, takes_products
from fusedops.torch.nn.plans import plan_of

_CONV1D = "transformers.pytorch_utils.Conv1D"  # a Linear whose weight is transposed


class ActivatedDense(HFLayer):
    """act(dense(x)), followed by the modules in `then`."""

    computes = ("activation",)

    def unfused(self) -> str | None:
        dense, activation = self.part("dense"), self.part("activation")
        if not (isinstance(dense, torch.nn.Linear) or _is_conv1d(dense)) or not is_activation(activation):
            return ONLY_ALIKE
        return unfused_dense(dense) or unfused_activation(activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(self.then, activated(self.part("activation"), self.part("dense"), x))


class DroppedDense(ActivatedDense):
    """dropout(last(dropout(act(dense(x))))), with functional dropouts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = activated(self.part("activation"), self.part("dense"), x)
        x = self.part("last")(functional.dropout(x, p=self.part("activation_dropout"), training=self.training))
        return functional.dropout(x, p=self.part("dropout"), training=self.training)


def activated(activation: Any, dense: Any, x: torch.Tensor) -> torch.Tensor:
    """act(dense(x)), by one kernel, or with bias and activation in one pass, unless hooks or subclasses forbid it."""
    name = fused_name(activation)
    if name is not None and is_plain_linear(dense) and is_plain(x):
        weight, bias = parameter(dense, "weight"), parameter(dense, "bias")
        is_called = reason_to_call(dense) or must_call(activation)
        if not is_called and takes_plain_product(weight, x):
            try:
                return fo.linear(x, weight, bias, name, transpose_weight=True)
            except REFUSED:
                pass  # the code below finds the reason
    if name is None or unfused_dense(dense) or reason_to_call(dense) or must_call(activation) or unfused_input(x):
        return activation(dense(x))
    weight, bias = dense.weight, dense.bias
    plan = plan_of(dense)
    if plan is not None:
        x = plan.prepare(x)
        weight, bias = plan.beside(x, weight, bias)
    if takes_products(x, dense):
        y = fo.linear(x, weight, bias, name, transpose_weight=not _is_conv1d(dense))
    elif bias is None:
        return activation(dense(x))
    else:
        product = x @ weight if _is_conv1d(dense) else functional.linear(x, weight)
        is_mixed = product.dtype is not bias.dtype and not stays_half(product, bias)
        if is_mixed or unfused_pass(product):
            return activation(dense(x))
        y = fo.bias_act(product, bias, name)
    return y if plan is None else plan.finish(y)


def unfused_dense(dense: torch.nn.Module) -> str | None:
    """The reason why no kernel computes this layer, or None."""
    if not is_plain_linear(dense) and not _is_conv1d(dense):
        return f"its product is a {type(dense).__module__}.{type(dense).__name__}"
    return None


def _is_conv1d(dense: Any) -> bool:
    return full_name(type(dense)) == _CONV1D
