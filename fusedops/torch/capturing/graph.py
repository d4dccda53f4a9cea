"""The CUDA graphs of a model's forward and backward for one combination of arguments."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fusedops.torch import internals
from fusedops.torch.explaining.state import Generators, restored

DEVICE = "cuda"
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


class RefusedError(Exception):
    """The reason why no graph computes the same as the model."""


def is_on_gpu(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == DEVICE


def check(name: str, values: Sequence[Any], device: torch.device) -> None:
    """Refuses all but tensors on the device and constants."""
    for x in values:
        is_plain = type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided and x.device == device
        if not is_plain and type(x) not in _CONSTANTS:
            place = f" on {x.device}" if isinstance(x, Tensor) else ""
            kind = f"{type(x).__name__}{place}"
            raise RefusedError(f"{name} is a {kind}, neither a dense tensor on {device} nor a constant")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Garbage may hold graphs, events or modules of CUDA, which may end a capture with an error if destroyed in it."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Recorder:
    """Captures work on one device. All graphs share memory, which a forward fills until its backward has run."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.last: Callable[[], Turn | None] = lambda: None

    def warm_up(self, work: Callable[[], None]) -> None:
        torch.cuda.synchronize(self.device)
        with torch.cuda.stream(self.stream):
            work()
            work()
            try:
                with internals.as_if_captured():
                    work()
            except RuntimeError as error:
                raise RefusedError(f"the forward or the backward cannot be captured: {error}") from None
        torch.cuda.synchronize(self.device)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Returns the function that replays the work."""
        captured = torch.cuda.CUDAGraph()
        # Other threads, such as those of a DataLoader, may call CUDA meanwhile.
        options: dict[str, Any] = {"stream": self.stream, "capture_error_mode": "thread_local"}
        try:
            with torch.cuda.stream(self.stream), torch.cuda.graph(captured, self.pool, **options):
                work()
        except RuntimeError as error:
            raise RuntimeError(
                "fusedops.torch.graphed: the model cannot be captured, and the CUDA state of this process is undefined "
                "now; start it again without graphed"
            ) from error
        return captured.replay


class Graph:
    """Forward and, if a gradient is wanted, backward. `inputs` and `upstream` are the memory that a replay reads."""

    def __init__(
        self, own: Callable[..., Any], model: torch.nn.Module, leaves: list[Any], spec: Any, recorder: Recorder
    ) -> None:
        device, with_gradients = recorder.device, torch.is_grad_enabled()
        if any(map(internals.has_hooks, list(model.modules())[1:])):
            raise RefusedError("a submodule has hooks, which a replay does not call")
        if any(hasattr(x, "main_grad") for x in model.parameters()):
            raise RefusedError("a parameter has main_grad")
        check("a parameter or buffer", [*model.parameters(), *model.buffers()], device)
        self.own, self.spec, self.recorder = own, spec, recorder
        self.leaves = [_memory(x, with_gradients) if isinstance(x, Tensor) else x for x in leaves]
        self.inputs = [x for x in self.leaves if isinstance(x, Tensor)]
        self.weights = [x for x in model.parameters() if x.requires_grad and with_gradients]
        self.results: list[Any] = []  # memory that a replay writes, and constants
        self.upstream: list[Tensor] = []
        self.replay_backward: Callable[[], None] | None = None
        generators = Generators(device)
        # Nodes of autograd that accumulate gradients of the parameters may exist already, on another stream.
        with _aliases(model, with_gradients) as aliases, restored(model, generators):
            self.wanted = [x for x in (*self.inputs, *aliases.values()) if x.requires_grad]
            recorder.warm_up(self._step)
            self._check(generators)
            if any(x.data_ptr() != alias.data_ptr() for x, alias in aliases.items()):
                raise RefusedError("the forward moves its parameters, as cuDNN's recurrent layers do")
            with _without_collection():
                self.replay_forward = recorder.capture(self._forward)
                if self.upstream:
                    self.replay_backward = recorder.capture(self._backward)
            # Tensors that the forward has cached as attributes, which a replay reads.
            self.cached = [{**vars(module), **module._buffers} for module in model.modules()]
        self.results = [x.detach() if isinstance(x, Tensor) else x for x in self.results]  # frees autograd's nodes
        self.outputs = [x for x in self.results if isinstance(x, Tensor)]

    def _forward(self) -> None:
        args, kwargs = internals.tree_unflatten(self.leaves, self.spec)
        kind = self.recorder.device.type
        # The cache of autocast would keep memory of the graph, and has casts of weights that a replay must repeat.
        with torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False):
            self.results, self.result_spec = internals.tree_flatten(self.own(*args, **kwargs))
        self.outputs = [x for x in self.results if isinstance(x, Tensor)]

    def _backward(self) -> None:
        sources = [x for x in self.outputs if x.requires_grad]
        with torch.autocast(self.recorder.device.type, enabled=False):
            self.gradients = torch.autograd.grad(sources, self.wanted, self.upstream, allow_unused=True)

    def _step(self) -> None:
        """Zeros as upstream gradients change nothing that a backward accumulates."""
        self._forward()
        check("a result", self.results, self.recorder.device)
        self.is_differentiable = [x.requires_grad for x in self.outputs]
        self.upstream = [torch.zeros_like(x) for x in self.outputs if x.requires_grad]
        if self.upstream:
            self._backward()
            check("a gradient", self.gradients, self.recorder.device)

    def _check(self, generators: Generators) -> None:
        if generators.have_drawn_on_host():
            raise RefusedError("the forward draws random numbers on the host, which a graph would repeat")
        if any(not x.is_inference() and x._version for x in self.inputs):
            raise RefusedError("the forward mutates an argument")
        if not {id(x) for x in _leaves(self.outputs)} <= {id(x) for x in self.wanted}:
            raise RefusedError("a gradient is wanted of a tensor that is neither an argument nor a module's parameter")

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        if self.replay_backward is None:
            with torch.no_grad():
                outputs = iter(self.replay(tensors))
        else:
            turn = Turn()
            self.recorder.last = weakref.ref(turn)
            outputs = iter(_Replay.apply(self, turn, *tensors, *self.weights))
        results = [next(outputs) if isinstance(x, Tensor) else x for x in self.results]
        return internals.tree_unflatten(results, self.result_spec)

    def replay(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for mine, x in zip(self.inputs, tensors, strict=True):
            mine.copy_(x)
        self.replay_forward()
        return [x.clone() for x in self.outputs]

    def replay_gradients(self, upstream: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of inputs and weights."""
        assert self.replay_backward is not None
        given = [x for x, is_wanted in zip(upstream, self.is_differentiable, strict=True) if is_wanted]
        for mine, x in zip(self.upstream, given, strict=True):
            mine.zero_() if x is None else mine.copy_(x)
        self.replay_backward()
        captured = [x for x in self.gradients if x is not None]
        copies = [torch.empty_like(x) for x in captured]
        torch._foreach_copy_(copies, captured)
        found = iter(copies)
        mine_or_none = iter([None if x is None else next(found) for x in self.gradients])
        return [next(mine_or_none) if x.requires_grad else None for x in (*self.inputs, *self.weights)]


class Turn:
    """One forward; it lives as long as a result that needs its backward."""

    is_over = False


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, turn: Turn, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.graph, ctx.turn = graph, turn
        ctx.set_materialize_grads(False)
        outputs = graph.replay(tensors[: len(graph.inputs)])
        constant = [x for x, is_wanted in zip(outputs, graph.is_differentiable, strict=True) if not is_wanted]
        ctx.mark_non_differentiable(*constant)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("fusedops.torch.graphed: a graph has no second derivatives; got create_graph")
        if ctx.turn.is_over:
            raise RuntimeError(
                "fusedops.torch.graphed: the backward of a result runs once, also with retain_graph; call the model "
                "again"
            )
        ctx.turn.is_over = True
        return None, None, *ctx.graph.replay_gradients(upstream)


def _memory(x: Tensor, with_gradients: bool) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad and with_gradients)


@contextmanager
def _aliases(model: torch.nn.Module, is_wanted: bool) -> Iterator[dict[Tensor, Tensor]]:
    """Gives the modules other parameters in the same memory, if wanted. The result has them by the model's own."""
    if not is_wanted:
        yield {}
        return
    named = [(module, name, x) for module in model.modules() for name, x in module._parameters.items()]
    places = [(module, name, x) for module, name, x in named if x is not None]
    aliases: dict[Tensor, Tensor] = {x: torch.nn.Parameter(x.detach(), x.requires_grad) for x in model.parameters()}
    try:
        for module, name, x in places:
            setattr(module, name, aliases[x])
        yield aliases
    finally:
        for module, name, x in places:
            setattr(module, name, x)


def _leaves(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors to which the backward of these outputs would add a gradient."""
    seen, left = set[Any](), [x.grad_fn for x in outputs]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable
