"""Linear layers that sum up their weight's gradient themselves: into `weight.main_grad`, by the product that makes it.

Megatron-LM and Transformer Engine have the same attribute, which their optimizers read in place of `grad`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch.internals import are_transforms_active, has_main_grad, tracing_state

_ops = torch.ops.fusedops


def is_added(weight: Any) -> bool:
    """Whether a gradient of this weight is wanted, and goes to its main_grad: not where torch.jit.trace or torch.func
    looks, whose programs have no such effects."""
    if not has_main_grad(weight) or not weight.requires_grad or not torch.is_grad_enabled():
        return False
    return tracing_state() is None and not are_transforms_active()


@torch.compiler.disable  # the compiler has no backward that changes a tensor which the forward does not return
def linear(x: Tensor, weight: Any, bias: Tensor | None, activation: Activation, dtype: torch.dtype) -> Tensor:
    """fusedops.torch.linear in this dtype, of a weight whose gradient `is_added`."""
    total, wanted = weight.main_grad, torch.float64 if dtype is torch.float64 else torch.float32
    if not isinstance(total, Tensor) or total.dtype is not wanted or total.shape != weight.shape:
        expected = f"a tensor of {str(wanted).removeprefix('torch.')} and shape {list(weight.shape)}"
        got = f"{total.dtype} and shape {list(total.shape)}" if isinstance(total, Tensor) else type(total).__name__
        raise ValueError(f"fusedops.torch.nn.Linear: weight.main_grad must be {expected}; got {got}")
    return _Linear.apply(x.to(dtype), weight, None if bias is None else bias.to(dtype), activation)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        cast = weight.to(x.dtype)
        has_slope = activation != "identity"
        y, z = _ops.linear(x, cast, bias, activation, True, has_slope)
        ctx.activation = activation
        ctx.weight = weight  # itself, with its attributes: what checkpoints and offloading unpack is another tensor
        ctx.save_for_backward(x, cast, bias, z if has_slope else None)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("fusedops.torch.nn.Linear: a weight with a main_grad has no double backward")
        x, cast, bias, z = ctx.saved_tensors
        weight = ctx.weight
        need_dx, _, need_dbias, _ = ctx.needs_input_grad
        dz, dx, dbias = dy, None, None
        if z is not None or need_dbias:
            found, dbias = _ops.bias_act_backward(
                dy, dy if z is None else z, bias, ctx.activation, z is not None, need_dbias
            )
            dz = dy if z is None else found
        fo.accumulate_matmul(weight.main_grad, _matrix(dz), _matrix(x), transpose_a=True)
        if need_dx:
            dx = _ops.matmul(dz, cast, False, False)
        return dx, _stand_in(weight), dbias if need_dbias else None, None


def _matrix(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


def _stand_in(weight: Any) -> Tensor | None:
    """What autograd gets as the weight's gradient: nothing, or, for a program that wants to be told that main_grad has
    it and whose hooks need a gradient to be called, one without values."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)
