"""Linear layers with a fused bias and activation, or gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.types import Device

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch.autocast import autocast_dtype
from fusedops.torch.internals import is_any_autocast_enabled, is_distributed, is_watched
from fusedops.torch.nn import main_grad
from fusedops.torch.nn.layer import (
    FusedLayer,
    as_original,
    is_small_on_gpu,
    joined,
    mixed_dtypes,
    name,
    options,
    unfused_input,
    unfused_pass,
)
from fusedops.torch.nn.plans import gated_linear, plan_of

_PLAIN = (nn.Parameter, Tensor)


def unfused_weight(x: Any, weight: Any) -> str | None:
    """The reason why the kernels do not multiply an otherwise supported x by this weight, or None."""
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor):
        return None
    if reason := unfused_input(weight, "weight"):
        return reason
    if type(weight) not in _PLAIN and _is_special(weight):
        return f"the weight is a {type(weight).__name__}"
    return None if weight.dtype is x.dtype or _cast(x) is not None else mixed_dtypes(x, weight)


def _torch_function(kind: Any) -> Any:
    """The `__torch_function__` of a tensor class."""
    method = kind.__torch_function__
    return getattr(method, "__func__", method)


_PLAIN_FUNCTIONS = tuple(map(_torch_function, _PLAIN))


def _is_special(weight: Tensor) -> bool:
    """True if the weight wraps other tensors, such as a quantized one, or may override F.linear."""
    if is_distributed(weight):
        return False
    return hasattr(weight, "__tensor_flatten__") or _torch_function(type(weight)) not in _PLAIN_FUNCTIONS


def unfused_product(x: Any, weight: Any) -> str | None:
    """As `unfused_weight`, with cases where torch's own product is faster."""
    if reason := unfused_weight(x, weight):
        return reason
    if not isinstance(x, Tensor) or not x.is_cpu or product_dtype(x).itemsize > 2 or main_grad.is_added(weight):
        return None
    return f"on a CPU, torch's own products of {name(product_dtype(x))} are faster"


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which x is multiplied: autocast's or its own."""
    return _cast(x) or x.dtype


def _cast(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast casts x, or None."""
    return None if x.dtype is torch.float64 else autocast_dtype(x.device.type)


def is_plain_linear(module: Any) -> bool:
    """True for torch.nn.Linear and its counterpart of `convert`. Subclasses, adapters and quantized layers may compute
    something else."""
    kind = type(module)
    return kind is nn.Linear or "is_torchs_linear" in kind.__dict__


def unfused_part(layer: nn.Module, name: str) -> str | None:
    """The reason why a linear sublayer must be called, or None: it was replaced, or has hooks or a main_grad."""
    part = getattr(layer, name)
    return f"{name} {reason}" if (reason := _replaced(part) or reason_to_call(part)) else None


def unfused_head(head: Any) -> str | None:
    """The reason why a loss needs the logits of its head, or None. `linear_loss` adds to the head's main_grad."""
    return _replaced(head) or _watched(head)


def _replaced(part: Any) -> str | None:
    return None if is_plain_linear(part) else f"is a {type(part).__module__}.{type(part).__qualname__}"


def reason_to_call(*layers: nn.Module) -> str | None:
    """The reason why linear layers with a common input must be called, or None if reading their parameters is enough:
    between the hooks of their `plan_of`, if they have one."""
    for dense in layers:
        if main_grad.has_main_grad(dense._parameters.get("weight")):
            return "has a weight whose gradient goes to main_grad"
    return _watched(*layers)


def _watched(*layers: nn.Module) -> str | None:
    is_any_watched = False
    for dense in layers:
        is_any_watched = is_any_watched or is_watched(dense)
    return "has a hook or a forward of its own" if is_any_watched and plan_of(*layers) is None else None


# FLOPs. In compiled code torch's product and a separate pass take a GPU less time for smaller products. In eager code
# small models are bound by launches, of which ours has fewer.
_FEWEST_COMPILED = 2**35


def takes_products(x: Tensor, *layers: Any) -> bool:
    """True if our kernel should compute the products of layers with a common input, and none need be called."""
    for dense in layers:
        weight = dense.weight
        if unfused_input(x) or not isinstance(weight, Tensor) or weight.device != x.device:
            return False
        if torch.compiler.is_compiling():
            flops = 2 * x.shape.numel() * weight.shape[0]
            if is_small_on_gpu(x, flops, _FEWEST_COMPILED):
                return False
        if unfused_product(x, weight):
            return False
    return not reason_to_call(*layers)


def takes_plain_product(weight: Any, x: Tensor) -> bool:
    """A fast test for a plain weight and an x that `is_plain`. If False, `takes_products` decides."""
    if type(weight) not in _PLAIN or weight.dtype is not x.dtype or is_any_autocast_enabled():
        return False
    return x.is_cuda or x.dtype.itemsize > 2


TORCH_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def checked_activation(layer: str, activation: Activation) -> Activation:
    if activation not in TORCH_ACTIVATIONS:
        choices = ", ".join(TORCH_ACTIVATIONS)
        raise ValueError(f"fusedops.torch.nn.{layer}: activation must be one of {choices}; got {activation!r}")
    return activation


class Linear(FusedLayer, nn.Linear):
    """act(x Wᵀ + bias): `fusedops.torch.linear`.

    The other arguments, the parameters and the state dict are those of `torch.nn.Linear`.

    Args:
        activation: `identity`, `relu`, `gelu` (exact, by erf), `gelu_tanh` (its approximation by tanh), `silu`,
            `sigmoid` or `tanh`. It replaces a module behind the layer, such as `torch.nn.GELU()`.

    Parameters:
        weight: [out_features, in_features].
        bias: [out_features], or None.

    Call arguments:
        input: [..., in_features], float64, float32, float16 or bfloat16, of the parameters' dtype. Under autocast, the
            input and the parameters are cast to its dtype first, as in torch, unless they are float64.

    Returns:
        [..., out_features], of the input's dtype, or of autocast's. 16-bit inputs are summed in float32, and rounded
        once, after the activation.

    Raises:
        RuntimeError: the input has the wrong shape or dtype.
        ValueError: `activation` is not one of those above, or `main_grad` has another shape or device than the weight.

    Gradient:
        The weight may have an attribute `main_grad`, as in Megatron-LM and Transformer Engine, in float32, or in
        float64 for a layer of float64. A backward then adds the gradient to it instead of `weight.grad`, without
        rounding to 16 bits. Tensor hooks of the weight are called with None. If the weight also has an attribute
        `grad_added_to_main_grad`, it becomes True; hooks and `weight.grad` then get zeros. Such a layer supports no
        double backward, forward mode or batched backward. torch.compile breaks its graph there, and raises an error
        with `fullgraph=True`. torch.func, torch.jit.trace and torch.autograd.grad with respect to the weight give
        torch's gradient.

    torch's own code handles 16 bits on a CPU, where its products are faster, unless the weight has a main_grad; all
    other dtypes, devices and layouts; and weights that are quantized. The gradient of a weight that is quantized or
    distributed is in `grad`.

    Example:
        >>> layer = fnn.Linear(2, 1, activation="relu")
        >>> _ = torch.nn.init.ones_(layer.weight), torch.nn.init.zeros_(layer.bias)
        >>> layer(torch.tensor([[1.0, 2.0]])).detach()
        tensor([[3.]])
    """

    activation: Activation = "identity"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation = "identity",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = checked_activation("Linear", activation)

    def why_not(self, *inputs: Any) -> str | None:
        return unfused_input(inputs[0]) or unfused_product(inputs[0], self.weight) if inputs else None

    def extra_repr(self) -> str:
        return joined(super().extra_repr(), options(self, activation="identity"))

    def forward(self, input: Tensor) -> Tensor:
        if self.why_not(input):
            return self.otherwise(self._of_torch, input)
        try:
            if main_grad.is_added(self.weight):
                return main_grad.linear(input, self.weight, self.bias, self.activation, product_dtype(input))
            return fo.linear(input, self.weight, self.bias, self.activation)
        except RuntimeError as error:
            return as_original(error, self._of_torch, input)

    def _of_torch(self, x: Tensor) -> Tensor:
        return TORCH_ACTIVATIONS[self.activation](super().forward(x))


class GatedLinear(FusedLayer, nn.Module):
    """act(gate_proj(x)) · up_proj(x): `fusedops.torch.gated_linear`.

    This is the first part of the feed-forward layers SwiGLU ("silu"), GEGLU ("gelu" or "gelu_tanh"), ReGLU ("relu"),
    GLU ("sigmoid") and the bilinear one ("identity").

    Each projection is a `torch.nn.Linear`, named as in Llama's MLPs. So Llama's checkpoints load unchanged, gradients
    need no concatenation, and libraries that shard, adapt or quantize layers by class or name find both. A packed
    weight would save nothing, since one kernel computes both products. A replaced projection, or one with hooks, is
    called.

    Args:
        in_features, out_features: of each projection.
        bias: True if each projection has a bias.
        activation: as in `Linear`.
        device, dtype: of the parameters.

    Parameters:
        gate_proj.weight, up_proj.weight: [out_features, in_features], initialized as in `torch.nn.Linear`.
        gate_proj.bias, up_proj.bias: [out_features], with `bias=True`.

    Call arguments:
        x: [..., in_features], float64, float32, float16 or bfloat16, of the parameters' dtype. Autocast is as in
            `Linear`.

    Returns:
        [..., out_features], of x's dtype, or of autocast's.

    Raises:
        RuntimeError: x has the wrong shape or dtype.
        ValueError: `activation` is not one of those of `Linear`.

    torch's own code computes the products where it does in `Linear`.

    Example:
        >>> layer = fnn.GatedLinear(2, 1, activation="relu")
        >>> _ = torch.nn.init.ones_(layer.gate_proj.weight), torch.nn.init.ones_(layer.up_proj.weight)
        >>> layer(torch.tensor([[1.0, 2.0]])).detach()
        tensor([[9.]])

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        activation: Activation = "silu",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.activation = checked_activation("GatedLinear", activation)
        self.gate_proj = nn.Linear(in_features, out_features, bias, device, dtype)
        self.up_proj = nn.Linear(in_features, out_features, bias, device, dtype)

    def reset_parameters(self) -> None:
        self.gate_proj.reset_parameters()
        self.up_proj.reset_parameters()

    def why_not(self, *inputs: Any) -> str | None:
        if inputs and (reason := unfused_input(inputs[0])):
            return reason
        for part in ("gate_proj", "up_proj"):
            if reason := unfused_part(self, part):
                return reason
            if inputs and (reason := unfused_product(inputs[0], getattr(self, part).weight)):
                return reason
        reason = reason_to_call(self.gate_proj, self.up_proj)
        return f"gate_proj or up_proj {reason}" if reason else None

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"

    def forward(self, x: Tensor) -> Tensor:
        if self.why_not(x):
            return self.otherwise(self._unfused, x)
        return gated_linear(self.activation, self.gate_proj, self.up_proj, x)

    def _unfused(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if gate.dtype is up.dtype and not (unfused_pass(gate) or unfused_input(up)):
            return fo.gated_act(gate, up, self.activation)
        return TORCH_ACTIVATIONS[self.activation](gate) * up
