"""What is taken from torch beyond its public API: the one place to look at when a new version of torch appears.

They are torch's own objects under other names: what is called for each operator would be slower behind a function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.fx
import torch.utils._pytree
from torch._functorch.eager_transforms import enable_inplace_requires_grad as enable_inplace_requires_grad
from torch.autograd import forward_ad as forward_ad  # for the variable _current_level: -1 outside of forward mode
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules.module import _has_any_global_hook

# Where a call is made.
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
are_transforms_active = torch._C._are_functorch_transforms_active
without_subclasses = torch._C.DisableTorchFunctionSubclass

# Dispatch.
below_autograd = torch._C._AutoDispatchBelowAutograd
after_autograd_keys = torch._C._after_autograd_keyset

# Forward mode.
forward_mode = forward_ad._set_fwd_grad_enabled
is_forward_mode_enabled = torch._C._is_fwd_grad_enabled
unpack_dual = torch._VF._unpack_dual

# torch.func.
unwrap_if_dead = torch._C._functorch.unwrap_if_dead
is_single_level_function_allowed = torch._C._functorch.get_single_level_autograd_function_allowed
allow_single_level_function = torch._C._functorch.set_single_level_autograd_function_allowed

# Nodes: torch.autograd.Function without its look for transforms.
SingleLevelFunction: Any = _SingleLevelFunction
compiled_autograd_key = torch.autograd.Function._compiled_autograd_key

dispatch_modes = torch._C._len_torch_dispatch_stack  # how many see each operator, as those that record do
tracing_state = torch._C._get_tracing_state  # of TorchScript's tracer: None where it does not record
check = torch._check  # becomes a guard of the compiler
tree_leaves = torch.utils._pytree.tree_leaves
tree_map = torch.utils._pytree.tree_map

# Nodes of autograd are numbered in the order in which a thread makes them: the number of the next.
next_node = torch.autograd._get_sequence_nr


def is_recorded() -> bool:
    """Whether calls of the dispatcher are seen by a TorchDispatchMode, as in selective checkpoints, or by TorchScript's
    tracer."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def is_exported_to_onnx() -> bool:
    """Whether torch.onnx.export runs the model to record it. Nothing is imported for the answer."""
    onnx = sys.modules.get("torch.onnx")
    is_recorded = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None  # asked first: it is fast
    return onnx is not None and is_recorded and onnx.is_in_onnx_export()


def is_distributed(x: Any) -> bool:
    """True for a DTensor. Its class is in torch.distributed.tensor, which takes a second to import."""
    return type(x).__name__ == "DTensor"


def context_parallel(attention: Any) -> tuple[Any, bool]:
    """The mesh of torch's context_parallel, which has put `attention` in place of torch's own; True if the order of the
    positions balances the load of causal attention."""
    mesh = inspect.getclosurevars(attention).nonlocals["device_mesh"]
    return mesh, sys.modules[attention.__module__]._cp_options.enable_load_balance


def is_symbol(x: Any) -> bool:
    """Whether x stands for a tensor while torch.fx records a module."""
    return isinstance(x, torch.fx.Proxy)


def node_of(module: torch.nn.Module, symbols: tuple[torch.fx.Proxy, ...]) -> torch.fx.Proxy | None:
    """The node of torch.fx's graph that calls the module; None for the module that is recorded itself."""
    tracer: Any = symbols[0].tracer
    path = tracer.path_of_module(module)
    return tracer.create_proxy("call_module", path, symbols, {}) if path else None


def is_within_kernel_of_torch_func() -> bool:
    """Whether torch.func has called a kernel, in which no further transform can begin."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode)


Function = TypeVar("Function", bound=Callable[..., Any])


def before_tracing(function: Function) -> Function:
    """A function that torch's compiler calls once, while it traces a call of it. The result must be None, a string or a
    number: to the compiler it is a constant."""
    # What torch.compiler.assume_constant_result sets, which would import the compiler.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# A function that compiled code calls as it is, with a break of its graph.
uncompiled: Any = torch._disable_dynamo  # type: ignore[attr-defined]


def in_cpp(overload: Callable[..., Any]) -> Callable[..., Any]:
    """A registered operator without the Python around it."""
    return getattr(overload, "_op", overload)


def shape(x: torch.Tensor) -> torch.Size:
    """Of a tensor, for a question that torch.jit.trace need not warn of, since any answer to it is right."""
    state = None if torch.compiler.is_compiling() else torch._C._get_tracing_state()
    if state is None:
        return x.shape
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return x.shape
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def is_watched(module: torch.nn.Module) -> bool:
    """Whether somebody would notice that the module is not called: by hooks, or by a forward that they set.

    Hooks may be the module's or those of all modules.
    """
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if own or "forward" in module.__dict__:
        return True
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call]


@contextmanager
def calls_of_modules(call: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile every module is called by `call(original, module, args, kwargs)`.

    Hooks would do, but our layers do not fuse away the call of a module that has any.
    """
    original = torch.nn.Module.__call__

    def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call(original, module, args, kwargs)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


def by_device_and_dtype(params: list[torch.Tensor], grads: list[Any]) -> list[tuple[list[torch.Tensor], list[Any]]]:
    """Tensors of one device and dtype each, with what goes with them, in their order."""
    dtypes, devices = {p.dtype for p in params}, {p.get_device() for p in params}
    if len(dtypes) <= 1 and len(devices) <= 1:  # found faster than by torch's function
        return [(params, grads)] if params else []
    found = torch._C._group_tensors_by_device_and_dtype([[*params]], True).values()
    return [([params[i] for i in places], [grads[i] for i in places]) for _, places in found]


def is_compiled(module: torch.nn.Module) -> bool:
    # torch.compile(module) holds it as _orig_mod; module.compile() leaves _compiled_call_impl. To ask for the class of
    # the former would import torch's compiler, which takes seconds.
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def forget_compiled(modules: Iterable[torch.nn.Module]) -> None:
    """Before torch 2.13, what was compiled for a module is not compiled anew when the module's class changes."""
    if any(map(is_compiled, modules)):
        torch.compiler.reset()
