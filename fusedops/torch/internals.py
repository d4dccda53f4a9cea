"""All uses of torch beyond its public API, to be reviewed for each new version of torch.

Most are torch's own objects under other names, since a wrapper function would slow down each call of an operator.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any, TypeVar

import torch
import torch.fx
import torch.utils._pytree
from torch._functorch.eager_transforms import enable_inplace_requires_grad as enable_inplace_requires_grad
from torch.autograd import forward_ad as forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules.module import _has_any_global_hook

# State of a call.
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

# Nodes: torch.autograd.Function without the handling of transforms.
SingleLevelFunction: Any = _SingleLevelFunction
compiled_autograd_key = torch.autograd.Function._compiled_autograd_key

dispatch_modes = torch._C._len_torch_dispatch_stack  # the number of active modes
tracing_state = torch._C._get_tracing_state  # of TorchScript's tracer; None if it does not record
check = torch._check  # becomes a guard of the compiler
tree_flatten = torch.utils._pytree.tree_flatten
tree_leaves = torch.utils._pytree.tree_leaves
tree_map = torch.utils._pytree.tree_map
tree_unflatten = torch.utils._pytree.tree_unflatten

next_node = torch.autograd._get_sequence_nr  # the sequence number of the next node that this thread makes


def is_recorded() -> bool:
    """True if a TorchDispatchMode, such as a selective checkpoint, or TorchScript's tracer observes each operator."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None


def is_exported_to_onnx() -> bool:
    """True while torch.onnx.export records a model. This does not import torch.onnx."""
    onnx = sys.modules.get("torch.onnx")
    is_recorded = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None  # the fast test
    return onnx is not None and is_recorded and onnx.is_in_onnx_export()


def is_distributed(x: Any) -> bool:
    """True for a DTensor, without importing torch.distributed.tensor, which takes a second."""
    return type(x).__name__ == "DTensor"


def context_parallel(attention: Any) -> tuple[Any, bool]:
    """The mesh of torch's context_parallel, which has put `attention` in place of torch's own; True if the order of the
    positions balances the load of causal attention."""
    mesh = inspect.getclosurevars(attention).nonlocals["device_mesh"]
    return mesh, sys.modules[attention.__module__]._cp_options.enable_load_balance


def may_carry(x: torch.Tensor) -> bool:
    """True if values derived from an eager tensor may be kept with it.

    An inference tensor does not count its changes, a transform of torch.func may have wrapped the tensor, and a CUDA
    graph that is being captured must derive the values at each replay.
    """
    if x.is_inference() or torch._C._are_functorch_transforms_active():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def stream_of(x: torch.Tensor) -> int:
    """The current CUDA stream of x's device; 0 on a CPU."""
    return torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else 0


def is_symbol(x: Any) -> bool:
    """True if x is a proxy for a tensor while torch.fx records a module."""
    return isinstance(x, torch.fx.Proxy)


def node_of(module: torch.nn.Module, symbols: tuple[torch.fx.Proxy, ...]) -> torch.fx.Proxy | None:
    """The node of torch.fx's graph that calls the module; None for the root module."""
    tracer: Any = symbols[0].tracer
    path = tracer.path_of_module(module)
    return tracer.create_proxy("call_module", path, symbols, {}) if path else None


def is_within_kernel_of_torch_func() -> bool:
    """True inside a kernel that torch.func has called, where no further transform can begin."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode)


Function = TypeVar("Function", bound=Callable[..., Any])


def before_tracing(function: Function) -> Function:
    """torch.compiler.assume_constant_result, without importing the compiler.

    The compiler calls the function while it traces, and treats the result (None, a string or a number) as a constant.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# A function that compiled code calls as it is, with a break of its graph.
uncompiled: Any = torch._disable_dynamo  # type: ignore[attr-defined]


def in_cpp(overload: Callable[..., Any]) -> Callable[..., Any]:
    """The C++ callable of a registered operator."""
    return getattr(overload, "_op", overload)


def shape(x: torch.Tensor) -> torch.Size:
    """x.shape, without a warning of torch.jit.trace: use it only where a change of shape cannot change the result."""
    state = None if torch.compiler.is_compiling() else torch._C._get_tracing_state()
    if state is None:
        return x.shape
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return x.shape
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def is_watched(module: torch.nn.Module) -> bool:
    """True if the module must be called: it has hooks, global hooks exist, or `forward` is an instance attribute."""
    return "forward" in module.__dict__ or has_hooks(module)


def has_hooks(module: torch.nn.Module) -> bool:
    """True if the module has hooks, or global hooks exist."""
    return bool(module._forward_hooks or module._forward_pre_hooks or _has_other_hooks(module))


def _has_other_hooks(module: torch.nn.Module) -> bool:
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call]


def closure_of(function: Any) -> dict[str, CellType]:
    """The cells of a function's closure, by the names of their variables."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


_STYLES = "torch.distributed.tensor.parallel.style"


def hooks_of_plan(*modules: torch.nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The hooks before and after the forward by which one style of a parallel plan shards the call of each of these
    modules; None if a module has other hooks, or none."""
    before = [hook for module in modules for hook in module._forward_pre_hooks.values()]
    after = [hook for module in modules for hook in module._forward_hooks.values()]
    if not len(before) == len(after) == len(modules) or any(map(_has_other_hooks, modules)):
        return None
    if any("forward" in module.__dict__ for module in modules):
        return None
    return (before[0], after[0]) if _have_one_style(*before) and _have_one_style(*after) else None


@before_tracing
def _have_one_style(*hooks: Any) -> bool:
    """True if torch's `distribute_module` has made these hooks, for equal styles of `parallelize_module`."""
    styles = [_style(hook) for hook in hooks]
    return styles[0] is not None and all(style == styles[0] for style in styles)


def _style(hook: Any) -> tuple[Any, ...] | None:
    """The function that a hook of `distribute_module` calls for a style of torch's own, its arguments and the mesh."""
    if getattr(hook, "__qualname__", None) != "distribute_module.<locals>.<lambda>":
        return None
    variables = {name: cell.cell_contents for name, cell in closure_of(hook).items()}
    function = variables.get("input_fn") or variables.get("output_fn")
    if not isinstance(function, functools.partial) or function.func.__module__ != _STYLES:
        return None
    return function.func, function.args, function.keywords, variables["device_mesh"]


@contextmanager
def calls_of_modules(call: Callable[..., Any]) -> Iterator[None]:
    """Replaces the call of every module by `call(original, module, args, kwargs)`.

    Hooks would change the measurement: fused layers call each submodule that has hooks.
    """
    original = torch.nn.Module.__call__

    def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call(original, module, args, kwargs)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def as_if_captured() -> Iterator[None]:
    """Waiting for the GPU is an error, as reading its random state, and code that asks learns of a capture.

    The error of a real capture would leave torch's allocator and generator in an undefined state.
    """
    mode = torch.cuda.get_sync_debug_mode()
    changed = {"is_current_stream_capturing": lambda: True, "get_rng_state": _no_state}
    originals = {name: getattr(torch.cuda, name) for name in changed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    vars(torch.cuda).update(changed)
    try:
        yield
    finally:
        vars(torch.cuda).update(originals)
        torch.cuda.set_sync_debug_mode(mode)


def _no_state(*_: Any) -> Any:
    raise RuntimeError("it reads the GPU's random state, as a checkpoint with preserve_rng_state does")


def by_device_and_dtype(params: list[torch.Tensor], grads: list[Any]) -> list[tuple[list[torch.Tensor], list[Any]]]:
    """The (params, grads) of each device and dtype, in their order."""
    dtypes, devices = {p.dtype for p in params}, {p.get_device() for p in params}
    if len(dtypes) <= 1 and len(devices) <= 1:  # faster than torch's function
        return [(params, grads)] if params else []
    found = torch._C._group_tensors_by_device_and_dtype([[*params]], True).values()
    return [([params[i] for i in places], [grads[i] for i in places]) for _, places in found]


def is_compiled(module: torch.nn.Module) -> bool:
    # torch.compile(module) stores it as _orig_mod; module.compile() sets _compiled_call_impl. A test for the class of
    # the former would import torch's compiler, which takes seconds.
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def forget_compiled(modules: Iterable[torch.nn.Module]) -> None:
    """Discards compiled code: before torch 2.13, a change of a module's class does not trigger a new compilation."""
    if any(map(is_compiled, modules)):
        torch.compiler.reset()
