"""Linear layers that sum up their weight's gradient themselves: into `weight.main_grad`, by the product that makes it.

Megatron-LM and Transformer Engine have the same attribute, which their optimizers read in place of `grad`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch.internals import are_transforms_active, is_distributed, tracing_state

_ops = torch.ops.fusedops
_last_writes: Any = WeakIdKeyDictionary()  # the stream of each weight's last write to main_grad in this backward


def has_main_grad(weight: Any) -> bool:
    """Whether the gradient of a linear layer's weight is to be added to `weight.main_grad`: one of another dtype than
    the sums have, and that of a DTensor, is left to the program, with the gradient in grad."""
    total = getattr(weight, "main_grad", None)
    return isinstance(total, Tensor) and total.dtype is _dtype_of_sums(weight) and not is_distributed(weight)


def is_added(weight: Any) -> bool:
    """Whether a gradient of this weight is recorded, and goes to its main_grad: not where torch.jit.trace or torch.func
    looks, whose programs have no such effects."""
    if not has_main_grad(weight) or not weight.requires_grad or not torch.is_grad_enabled():
        return False
    return tracing_state() is None and not are_transforms_active()


@torch.compiler.disable  # the compiler has no backward that changes a tensor which the forward does not return
def linear(x: Tensor, weight: Any, bias: Tensor | None, activation: Activation, dtype: torch.dtype) -> Tensor:
    """fusedops.torch.linear in this dtype, of a weight whose gradient `is_added`."""
    _checked_total(weight)
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
        need_dx, _, need_dbias, _ = ctx.needs_input_grad
        dz, dx, dbias = dy, None, None
        if z is not None or need_dbias:
            added = None if bias is None else torch.full_like(bias, -0.0)  # nothing: z contains the bias
            found, dbias = _ops.bias_act_backward(
                dy, dy if z is None else z, added, ctx.activation, z is not None, need_dbias
            )
            dz = dy if z is None else found
        dz = _matrix(dz)
        if need_dx:
            dx = _ops.matmul(dz, cast, False, False).view_as(x)
        dweight = _add(ctx, dz, _matrix(x))  # last, so that main_grad is unchanged if anything else raises
        return dx, dweight, dbias if need_dbias else None, None


def _add(ctx: Any, dz: Tensor, x: Tensor) -> Tensor | None:
    """Adds dzᵀ x to main_grad, if the backward is one that would add to the weight's grad.

    Returns what autograd gets as the weight's gradient: nothing, or zeros for a program that wants to be told that
    main_grad has it, and whose hooks need a gradient to be called; or the gradient, where torch.autograd.grad asks for
    it.
    """
    weight, (node, _) = ctx.weight, ctx.next_functions[1]
    try:
        is_wanted = torch._C._will_engine_execute_node(node)
    except RuntimeError:  # of a leaf whose gradient is returned, not accumulated
        return _ops.matmul(dz, x, True, False)
    if not is_wanted:
        return None
    _accumulate(weight, _checked_total(weight), dz, x)
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.zeros_like(weight)


def _accumulate(weight: Any, total: Tensor, dz: Tensor, x: Tensor) -> None:
    """total += dzᵀ x, ordered among CUDA streams as the engine orders the accumulation of grad.

    A node runs on its forward's stream, and the engine synchronizes streams for returned gradients only. So this waits
    for the backward's earlier writes on other streams, and the stream that called backward() waits for each write.
    """
    if not total.is_cuda:
        fo.accumulate_matmul(total, dz, x, transpose_a=True)
        return
    stream = torch.cuda.current_stream(total.device)
    last = _last_writes.get(weight, stream)
    if last != stream:
        stream.wait_stream(last)
    fo.accumulate_matmul(total, dz, x, transpose_a=True)
    _last_writes[weight] = stream
    # The engine calls back at the end of the backward, with the streams current where backward() was called.
    torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_finish, weight, stream))


def _finish(weight: Any, stream: torch.cuda.Stream) -> None:
    caller = torch.cuda.current_stream(stream.device)
    if caller != stream:
        caller.wait_stream(stream)
    if _last_writes.get(weight) == stream:
        del _last_writes[weight]  # the next backward follows the caller's stream; a captured one may wait for no other


def _matrix(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


def _dtype_of_sums(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype is torch.float64 else torch.float32


def _checked_total(weight: Any) -> Tensor:
    """main_grad, before anything is added: with several layers, an error behind the first would leave it changed."""
    total = getattr(weight, "main_grad", None)
    if total is None:
        got = "none; keep the one of the forward until the backward has ended"
    elif not isinstance(total, Tensor):
        got = type(total).__name__
    elif total.requires_grad or total.layout is not torch.strided:
        got = f"one of layout {total.layout} with requires_grad={total.requires_grad}"
    elif (total.dtype, total.shape, total.device) == (_dtype_of_sums(weight), weight.shape, weight.device):
        return total
    else:
        got = _described(total.dtype, total.shape, total.device)
    expected = _described(_dtype_of_sums(weight), weight.shape, weight.device)
    expected = f"a strided tensor without requires_grad, {expected}"
    raise ValueError(f"fusedops.torch.nn.Linear: weight.main_grad must be {expected}; got {got}")


def _described(dtype: torch.dtype, shape: torch.Size, device: torch.device) -> str:
    return f"of {str(dtype).removeprefix('torch.')} and shape {list(shape)} on {device}"
