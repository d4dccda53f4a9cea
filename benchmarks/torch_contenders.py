"""PyTorch: fusedops, torch eager, torch.compile, other libraries, and what bounds them all."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._inductor.config as inductor

import fusedops.torch as fo
from benchmarks import peers, torch_llama
from benchmarks.case import LLAMA, RECORDED, Case
from benchmarks.inputs import INPUTS, NUMBERS, WANTED, Function, Layout, angles, drawn, dtype_of, public
from benchmarks.timing import Build, Call, Clock, Contender, HostClock
from benchmarks.torch_clocks import event_clock, graph, profiler_clock
from benchmarks.torch_formulas import EAGER, FORMULAS

NAME, TITLE = "torch", "PyTorch"
GRAPH_CALLS = 128  # where they rotate, over as many buffers: a GiB, of which no cache holds much

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def version() -> str:
    return f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.version.cuda else torch.__version__


def has_gpu() -> bool:
    return torch.cuda.is_available()


def notes() -> list[str]:
    return peers.installed()[1] if has_gpu() else []


def keep_no_tuning() -> None:
    """For processes that share the GPU: what is tuned there is tuned badly, and must not reach those who measure."""
    inductor.autotune_local_cache = False


@contextmanager
def on(device: str) -> Iterator[None]:
    """A case's surroundings; torch.device would cost every call several microseconds."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()  # or it would run eagerly after eight shapes of one formula
    yield


def inputs(case: Case) -> dict[str, Any]:
    torch.manual_seed(0)
    return drawn(case, _draw)


def _draw(case: Case, name: str, layout: Layout) -> torch.Tensor:
    options: dict[str, Any] = {"dtype": getattr(torch, dtype_of(case, name)), "device": case.device}
    if name == "labels":
        return torch.randint(case.shape[-1], layout.shape, device=case.device)
    if name in ("cos", "sin"):
        return torch.from_numpy(angles(name, layout)).to(**options)
    return torch.randn(layout.shape, **options) if layout.shape else torch.tensor(NUMBERS[name], **options)


def wide(tensor: torch.Tensor, places: np.ndarray | slice | None, axis: int | None) -> torch.Tensor:
    """Some of a tensor along an axis, or all of it, in float64; integers stay."""
    tensor = tensor.detach()
    if isinstance(places, slice):
        tensor = tensor.narrow(axis or 0, places.start, places.stop - places.start)
    elif places is not None:
        tensor = tensor.index_select(axis or 0, torch.from_numpy(places).to(tensor.device))
    return tensor.double() if tensor.is_floating_point() else tensor


def numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def formula(case: Case) -> Function:
    if case.operator != "matmul":
        return FORMULAS[case.operator]
    transpose_a, transpose_b = case.transposes
    return lambda a, b: torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def call(case: Case, function: Function, values: Mapping[str, Any]) -> Call:
    """What a clock sees: a call that returns outputs, gradients, or both."""
    given = {name: values[name] for name in INPUTS[case.operator]}
    if case.variant == "forward":
        return partial(function, *given.values())
    given.update({name: given[name].detach().requires_grad_() for name in WANTED[case.operator]})
    leaves = [given[name] for name in WANTED[case.operator]]
    upstream = [value for name, value in values.items() if name not in given] or None
    arguments = tuple(given.values())
    if case.variant == RECORDED:
        return partial(function, *arguments)
    if case.variant == "backward":  # alone, over a graph that stays
        return partial(torch.autograd.grad, function(*arguments), leaves, upstream, retain_graph=True)

    def step() -> tuple[torch.Tensor, ...]:
        outputs = function(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return *outputs, *torch.autograd.grad(outputs, leaves, upstream)

    return step


def contenders(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    if case.section == "launch":
        return _launch(case, values)
    if case.operator == LLAMA:
        return torch_llama.contenders(case, lambda: HostClock() if case.device == "cpu" else event_clock)

    def clock() -> Clock:
        if case.device == "cpu":
            return HostClock()
        return HostClock(torch.cuda.synchronize) if case.section == "python" else event_clock

    def timed(function: Callable[[], Function], values: Callable[[], Mapping[str, Any]] = lambda: values) -> Build:
        """Everything happens when it is built: a contender that fails there must not take the others along."""
        return lambda: _timed(case, call(case, function(), values()), clock())

    result = {
        "fusedops": timed(lambda: public(fo, case)),
        "eager": timed(lambda: EAGER.get(case.operator, formula(case))),
    }
    if case.device == "cpu":
        if case.section == "call" or (case.operator, case.variant) == ("axpby", "forward"):
            result["addcmul"] = lambda: Contender(_addcmul(case), clock(), checked=False)
        if case.section == "call" and case.variant == "forward":
            result["torch.ops"] = lambda: Contender(_raw(case, values), clock())
        return result
    if "tf" in case.frameworks:
        synchronized = HostClock(torch.cuda.synchronize)
        result["fusedops, host clock"] = lambda: Contender(call(case, public(fo, case), values), synchronized)
    if case.operator != "matmul":
        result["compiled"] = timed(lambda: torch.compile(formula(case), dynamic=False))
        if case.section != "python":
            result["copy"] = lambda: _copy(case, values)
    for name, library in peers.installed()[0].items():
        if case.operator in library:
            own = partial(peers.arguments, name, case.operator, values)
            result[name] = timed(partial(library.__getitem__, case.operator), own)
    return result


def _timed(case: Case, call: Call, clock: Clock, **more: Any) -> Contender:
    if case.section != "small":
        return Contender(call, clock, **more)
    return Contender(graph(call, [()] * GRAPH_CALLS), event_clock, calls=GRAPH_CALLS, **more)


def _copy(case: Case, values: Mapping[str, Any]) -> Contender:
    """What bounds whoever moves memory: bytes over this bandwidth are the floor of a case."""
    x = next(x for x in values.values() if isinstance(x, torch.Tensor) and x.shape == case.shape)
    copy = partial(torch.empty_like(x).copy_, x)
    return _timed(case, copy, event_clock, work=2.0 * x.numel() * x.element_size(), checked=False)


def _addcmul(case: Case) -> Call:
    case = replace(case, operator="axpby")
    return call(case, lambda a, x, b: torch.addcmul(b, a, x), inputs(case))


def _raw(case: Case, values: Mapping[str, Any]) -> Call:
    """The registered operator without the function before it: `a` is a tensor and a number, of which one is used."""
    operator = getattr(torch.ops.fusedops, case.operator).default
    match case.operator:
        case "axpby":
            return partial(operator, *values.values(), 0.0)
        case "scale":
            return partial(operator, values["x"], None, values["factor"])
        case "polynomial_activation":
            return partial(operator, values["x"], [1.0, 1.0, 1.0])
    return partial(operator, *values.values())


def _launch(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    """relu alone on the GPU, and a kernel of one element for the floor."""
    method, buffers = case.variant.split(", ")
    x = values["x"]
    same = [(x,)] * GRAPH_CALLS
    xs = [(x.clone(),) for _ in range(GRAPH_CALLS)] if buffers == "rotating" else same
    one = [(torch.ones(1, device=case.device),) for _ in range(GRAPH_CALLS)]

    def build(function: Function, arguments: list[tuple[torch.Tensor]], checked: bool) -> Contender:
        if method == "graph":
            return Contender(graph(function, arguments), event_clock, calls=GRAPH_CALLS, checked=checked)
        return Contender(_rotating(function, arguments), profiler_clock, checked=checked)

    return {
        "fusedops": partial(build, public(fo, case), xs, True),
        "eager": partial(build, torch.relu, xs, True),
        "launch floor": partial(build, torch.relu, one, False),
    }


def _rotating(function: Function, arguments: list[tuple[torch.Tensor]]) -> Call:
    """The next argument with each call; outputs are kept for a turn, or one buffer would serve them all."""
    turns, outputs = itertools.cycle(arguments), deque[torch.Tensor](maxlen=len(arguments))

    def call() -> torch.Tensor:
        outputs.append(function(*next(turns)))
        return outputs[-1]

    return call
