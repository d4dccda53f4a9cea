"""`graphed` replays the forward and the backward of a model as CUDA graphs, without a compiler.

`torch.cuda.make_graphed_callables` returns memory of its graphs: the next replay overwrites results, and gradients that
`param.grad` holds, which breaks the accumulation of gradients. Here both are copied out, and a model's graphs share
their memory. A graph is therefore replayed only while no earlier result awaits its backward.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from fusedops import conversion
from fusedops.torch import internals
from fusedops.torch.capturing import graph

__all__ = ["graphed"]

_Model = TypeVar("_Model", bound=torch.nn.Module)

_CONTAINERS = (dict, list, tuple, OrderedDict)  # of arguments; a forward may mutate any other object
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FSDPModule", "FullyShardedDataParallel"}


def graphed(model: _Model, *, max_graphs: int = 4) -> _Model:
    """Makes a model replay its forward and its backward as CUDA graphs, so that the GPU does not wait for Python.

    This helps small models, whose kernels take less time than their launches, and needs no compiler. Training code
    stays as it is: call the model, `backward`, and the optimizer, which is not captured. The first call with new
    arguments runs the model three times and captures it; buffers and random numbers stay as they were. Later calls copy
    their tensors to the graph's memory, and results and gradients out of it, so that both stay valid.

    There is one graph for each combination of shapes, dtypes and layouts, values of other arguments, gradients wanted
    or not, modes of modules, autocast, and memory of parameters and buffers. Dropout draws anew in each replay, and
    BatchNorm updates its statistics. A replay runs no Python: the forward neither prints nor changes attributes, and
    global settings and other attributes are those of the first call.

    Without a GPU, under torch.compile, torch.func and dispatch modes the model runs as before. It also does so, with
    one warning for each reason, where a graph would not compute the same:

    - more combinations than `max_graphs`: pad to fewer shapes;
    - arguments or results other than tensors on the GPU and constants, such as a cache of keys and values: set
      `model.config.use_cache = False`. Arguments may be in dict, list and tuple, results also in a ModelOutput;
    - a forward or backward that waits for the GPU, as `.item()` does, mutates an argument, draws random numbers on the
      host, moves parameters, as cuDNN's recurrent layers do, or reads the random state, as activation checkpoints do
      without `preserve_rng_state=False`;
    - submodules with hooks, and parameters with `main_grad`;
    - a call while an earlier result awaits its backward. Use `torch.no_grad()` for evaluation.

    Args:
        model: any module, after `convert`, which skips a model whose `forward` is replaced. The attribute `forward` is
            set on the model itself; `del model.forward` undoes this. Class, parameters, state dicts and hooks stay, and
            copies and pickles capture graphs of their own.
        max_graphs: the largest number of graphs.

    Returns:
        The same model.

    Raises:
        TypeError: it is not a torch.nn.Module.
        ValueError: max_graphs is less than 1; the model is lazy, compiled or distributed (DistributedDataParallel may
            wrap it afterwards), or its `forward` is replaced already.
        RuntimeError: a backward of one result runs a second time, also with `retain_graph`, or with `create_graph`; the
            forward cannot be captured, and no check found this.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))
        >>> model = fo.graphed(fo.convert(model, verbose=False))
        >>> model(torch.ones(2, 8)).sum().backward()
    """
    if not isinstance(model, torch.nn.Module):
        raise conversion.no_model("fusedops.torch.graphed", "a torch.nn.Module", model)
    if max_graphs < 1:
        raise ValueError(f"fusedops.torch.graphed: max_graphs must be at least 1; got {max_graphs}")
    modules, tensors = list(model.modules()), [*model.parameters(), *model.buffers()]
    kinds = {kind.__name__ for module in modules for kind in type(module).__mro__}
    for is_refused, why in (
        (any(map(is_lazy, tensors)), "not be lazy; call it once before"),
        (any(map(internals.is_compiled, modules)), 'not be compiled; torch.compile has mode="reduce-overhead"'),
        (kinds & _WRAPPERS or any(map(internals.is_distributed, tensors)), "not be distributed; pass its module"),
        ("forward" in vars(model), "have the forward of its class; it is replaced already"),
    ):
        if is_refused:
            raise ValueError(f"fusedops.torch.graphed: model must {why}")
    model.forward = _Forward(model, max_graphs)
    return model


class _Forward:
    """The `forward` of a graphed model: replays the graph of a call, captures a new one, or runs the model's own."""

    def __init__(self, model: torch.nn.Module, max_graphs: int) -> None:
        functools.update_wrapper(self, types.MethodType(type(model).forward, model))  # inspect.signature follows
        self.model, self.max_graphs = model, max_graphs
        self.graphs: dict[Any, graph.Graph | graph.RefusedError] = {}
        self.recorder: Any = None
        self.warned = set[str]()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Forward, (self.model, self.max_graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = functools.partial(type(self.model).forward, self.model)  # the compiler takes no other bound function
        if torch.compiler.is_compiling() or internals.is_recorded() or internals.are_transforms_active():
            return own(*args, **kwargs)
        leaves, spec = internals.tree_flatten((args, kwargs), is_leaf=lambda x: type(x) not in _CONTAINERS)
        device = next((x.device for x in leaves if graph.is_on_gpu(x)), None)
        if device is None or torch.cuda.is_current_stream_capturing():
            return own(*args, **kwargs)
        try:
            found = self._graph(own, leaves, spec, device)
        except graph.RefusedError as refused:
            if str(refused) not in self.warned:
                self.warned.add(str(refused))
                warnings.warn(f"fusedops.torch.graphed: a call runs without a graph: {refused}", stacklevel=4)
            return own(*args, **kwargs)
        return found([x for x in leaves if isinstance(x, Tensor)])

    def _graph(self, own: Callable[..., Any], leaves: list[Any], spec: Any, device: torch.device) -> graph.Graph:
        if self.recorder is None or self.recorder.device != device:
            self.recorder = graph.Recorder(device)
        last = self.recorder.last()
        if last is not None and not last.is_over:
            raise graph.RefusedError("an earlier result awaits its backward; use torch.no_grad() if it has none")
        graph.check("an argument", leaves, device)
        key = (
            spec,
            device,
            *(_signature(x) for x in leaves),
            *(torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
            *(torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)),
            *_state(self.model),
        )
        if key not in self.graphs:
            if len(self.graphs) >= self.max_graphs:
                raise graph.RefusedError(
                    f"it differs from the {self.max_graphs} before in shapes, constants or modes; pad to fewer shapes, "
                    "or set max_graphs"
                )
            try:
                self.graphs[key] = graph.Graph(own, self.model, leaves, spec, self.recorder)
            except graph.RefusedError as refused:
                self.graphs[key] = refused
        found = self.graphs[key]
        if isinstance(found, graph.RefusedError):
            raise found
        return found


def _signature(x: Any) -> tuple[Any, ...]:
    return (x.shape, x.stride(), x.dtype, x.requires_grad) if isinstance(x, Tensor) else (type(x), x)


def _state(model: torch.nn.Module) -> list[Any]:
    """The modes and memory that a graph fixes, by module. `model.modules()` takes several times as long."""
    state, left = list[Any](), [model]
    while left:
        module = left.pop()
        state += type(module), module.training, module is not model and internals.has_hooks(module)
        for x in (*module._parameters.values(), *module._buffers.values()):
            if x is not None:
                state += x.data_ptr(), x.requires_grad
        left += [each for each in module._modules.values() if each is not None]
    return state
