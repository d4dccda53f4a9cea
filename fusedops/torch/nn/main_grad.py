"""Layers that add the weight's gradient to `weight.main_grad`: linear ones in the product, losses after their operator.

The attribute is that of Megatron-LM and Transformer Engine, whose optimizers read it instead of `grad`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    """True if the weight's gradient is added to `weight.main_grad`, which must have the accumulation dtype.

    A main_grad of another dtype, or of a DTensor, is left to the program; the gradient is then in `grad`.
    """
    total = getattr(weight, "main_grad", None)
    return isinstance(total, Tensor) and total.dtype is _accumulation_dtype(weight) and not is_distributed(weight)


def is_added(weight: Any) -> bool:
    """True if a backward of this weight is recorded and adds to its main_grad.

    Not under torch.jit.trace and torch.func, whose programs have no side effects.
    """
    if not has_main_grad(weight) or not weight.requires_grad or not torch.is_grad_enabled():
        return False
    return tracing_state() is None and not are_transforms_active()


@torch.compiler.disable  # the compiler has no backward that changes a tensor which the forward does not return
def linear(x: Tensor, weight: Any, bias: Tensor | None, activation: Activation, dtype: torch.dtype) -> Tensor:
    """fusedops.torch.linear in this dtype, for a weight that `is_added`."""
    _checked_total(_Linear.owner, weight)
    return _Linear.apply(x.to(dtype), weight, None if bias is None else bias.to(dtype), activation)


@torch.compiler.disable
def to_main_grad(weight: Any, operator: str) -> Tensor:
    """A weight that `is_added`, as an argument of this operator, whose gradient of the weight is added to main_grad.

    The operator has rounded the gradient to its dtype.
    """
    owner = f"fusedops.{operator}"
    _checked_total(owner, weight)
    result: Tensor = _ToMainGrad.apply(weight, owner)
    return result


class _Linear(torch.autograd.Function):
    owner = "fusedops.torch.nn.Linear"

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        cast = weight.to(x.dtype)
        has_slope = activation != "identity"
        y, z = _ops.linear(x, cast, bias, activation, True, has_slope)
        ctx.activation = activation
        ctx.weight = weight  # with its attributes, which an unpacked saved tensor lacks
        ctx.save_for_backward(x, cast, bias, z if has_slope else None)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_double_backward(_Linear.owner)
        x, cast, bias, z = ctx.saved_tensors
        need_dx, _, need_dbias, _ = ctx.needs_input_grad
        dz, dx, dbias = dy, None, None
        if z is not None or need_dbias:
            added = None if bias is None else torch.full_like(bias, -0.0)  # changes no bit: z includes the bias
            found, dbias = _ops.bias_act_backward(
                dy, dy if z is None else z, added, ctx.activation, z is not None, need_dbias
            )
            dz = dy if z is None else found
        dz = _matrix(dz)
        if need_dx:
            dx = _ops.matmul(dz, cast, False, False).view_as(x)
        rows = _matrix(x)
        dweight = _add(  # last: if anything else raises, main_grad is unchanged
            _Linear.owner,
            ctx.weight,
            ctx.next_functions[1],
            lambda: _ops.matmul(dz, rows, True, False),
            lambda total: fo.accumulate_matmul(total, dz, rows, transpose_a=True),
        )
        return dx, dweight, dbias if need_dbias else None, None


class _ToMainGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, owner: str) -> Tensor:
        ctx.owner = owner
        ctx.weight = weight
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, dweight: Tensor) -> tuple[Tensor | None, ...]:
        edge = ctx.next_functions[0]
        return _add(ctx.owner, ctx.weight, edge, lambda: dweight, lambda total: total.add_(dweight)), None


def _add(
    owner: str, weight: Any, edge: Any, gradient: Callable[[], Tensor], add: Callable[[Tensor], object]
) -> Tensor | None:
    """Calls `add` with main_grad, in a backward that accumulates into the weight's grad.

    Returns the weight's gradient for autograd: None; or zeros if the weight has `grad_added_to_main_grad`, whose users'
    hooks need a gradient; or the gradient for torch.autograd.grad. `edge` leads to the weight's node.
    """
    try:
        is_wanted = torch._C._will_engine_execute_node(edge[0])
    except RuntimeError:  # torch.autograd.grad returns the gradient of this leaf
        return gradient()
    if not is_wanted:
        return None
    _refuse_double_backward(owner)
    _accumulate(weight, _checked_total(owner, weight), add)
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.zeros_like(weight)


def _refuse_double_backward(owner: str) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(f"{owner}: a weight with a main_grad has no double backward")


def _accumulate(weight: Any, total: Tensor, add: Callable[[Tensor], object]) -> None:
    """add(total), ordered among CUDA streams as the engine orders the accumulation of grad.

    A node runs on its forward's stream, and the engine synchronizes streams for returned gradients only. So this waits
    for the backward's earlier writes on other streams, and the stream that called backward() waits for each write.
    """
    if not total.is_cuda:
        add(total)
        return
    stream = torch.cuda.current_stream(total.device)
    last = _last_writes.get(weight, stream)
    if last != stream:
        stream.wait_stream(last)
    add(total)
    _last_writes[weight] = stream
    # The callback runs at the end of the backward, with the streams that were current at the call of backward().
    torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_finish, weight, stream))


def _finish(weight: Any, stream: torch.cuda.Stream) -> None:
    caller = torch.cuda.current_stream(stream.device)
    if caller != stream:
        caller.wait_stream(stream)
    if _last_writes.get(weight) == stream:
        del _last_writes[weight]  # the next backward follows the caller's stream; a captured one may wait for no other


def _matrix(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 1 else x.flatten(0, -2)


def _accumulation_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype is torch.float64 else torch.float32


def _checked_total(owner: str, weight: Any) -> Tensor:
    """The checked main_grad. The forward checks it, before any layer's backward adds to one."""
    total = getattr(weight, "main_grad", None)
    if total is None:
        got = "none; keep the one of the forward until the backward has ended"
    elif not isinstance(total, Tensor):
        got = type(total).__name__
    elif total.requires_grad or total.layout is not torch.strided:
        got = f"one of layout {total.layout} with requires_grad={total.requires_grad}"
    elif (total.dtype, total.shape, total.device) == (_accumulation_dtype(weight), weight.shape, weight.device):
        return total
    else:
        got = _described(total.dtype, total.shape, total.device)
    expected = _described(_accumulation_dtype(weight), weight.shape, weight.device)
    expected = f"a strided tensor without requires_grad, {expected}"
    raise ValueError(f"{owner}: weight.main_grad must be {expected}; got {got}")


def _described(dtype: torch.dtype, shape: torch.Size, device: torch.device) -> str:
    return f"of {str(dtype).removeprefix('torch.')} and shape {list(shape)} on {device}"
