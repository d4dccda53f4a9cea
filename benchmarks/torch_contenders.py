"""PyTorch: fusedops, torch eager, and what bounds both."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import fusedops.torch as fo
from benchmarks.cases import Case
from benchmarks.formulas import FACTOR, INPUTS, WANTED, expressions
from benchmarks.timing import Call, Contender, HostClock

NAME, TITLE = "torch", "PyTorch"
EXPRESSIONS = expressions(relu=torch.relu)
GRAPH_CALLS = 128  # over as many buffers: a GiB, of which no cache holds much

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def version() -> str:
    return f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.version.cuda else torch.__version__


def has_gpu() -> bool:
    return torch.cuda.is_available()


@contextmanager
def on(device: str) -> Iterator[None]:
    """A case's surroundings; torch.device would cost every call several microseconds."""
    if device == "cuda":
        torch.cuda.empty_cache()
    yield


def inputs(case: Case) -> dict[str, Any]:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": case.device}
    if case.operator == "matmul":
        m, n, k = case.shape
        transpose_a, transpose_b = case.transposes
        a = torch.randn((k, m) if transpose_a else (m, k), **options)
        return {"a": a, "b": torch.randn((n, k) if transpose_b else (k, n), **options)}
    values: dict[str, Any] = dict.fromkeys(INPUTS[case.operator], FACTOR)
    values.update({name: torch.randn(case.shape, **options) for name in values if name in "xyb"})
    if "a" in values:
        values["a"] = torch.tensor(FACTOR, **options)
    if case.variant == "backward":
        values["dy"] = torch.randn(case.shape, **options)
    return values


def take(tensor: torch.Tensor, places: np.ndarray, axis: int) -> np.ndarray:
    tensor = torch.atleast_1d(tensor.detach())
    return tensor.index_select(axis, torch.from_numpy(places).to(tensor.device)).double().cpu().numpy()


def dot(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() * y.double()).sum())


def contenders(case: Case, values: Mapping[str, Any]) -> dict[str, Contender]:
    if case.section == "launch":
        return _launch(case, values)
    ours, eager = _functions(case)
    if case.variant == "backward":
        ours, eager = _gradient(case, ours, values), _gradient(case, eager, values)
    else:
        ours, eager = partial(ours, *values.values()), partial(eager, *values.values())
    if case.device == "cpu":
        clock = HostClock()
        result = {"fusedops": Contender(ours, clock), "eager": Contender(eager, clock)}
        if case.section == "call" or (case.operator, case.variant) == ("axpby", "forward"):
            result["addcmul"] = Contender(_addcmul(case), clock, checked=False)
        if case.section == "call":
            result["torch.ops"] = Contender(_raw(case, values), clock)
        return result

    result = {
        "fusedops": Contender(ours, event_clock),
        "fusedops, host clock": Contender(ours, HostClock(torch.cuda.synchronize)),
        "eager": Contender(eager, event_clock),
    }
    if case.section == "stream":
        x = values["x"]
        target = torch.empty_like(x)
        copy = 2.0 * x.numel() * x.element_size()
        result["copy"] = Contender(partial(target.copy_, x), event_clock, work=copy, checked=False)
    if case.variant == "backward":
        result["compiled"] = Contender(partial(_compiled, values["dy"], values["a"], values["x"]), event_clock)
    return result


def _functions(case: Case) -> tuple[Callable[..., Any], Callable[..., Any]]:
    ours = getattr(fo, case.operator)
    if case.operator != "matmul":
        return ours, EXPRESSIONS[case.operator]
    transpose_a, transpose_b = case.transposes

    def eager(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)

    return partial(ours, transpose_a=transpose_a, transpose_b=transpose_b), eager


def _gradient(case: Case, function: Callable[..., Any], values: Mapping[str, Any]) -> Call:
    """The backward alone, over a graph that stays."""
    wanted = WANTED[case.operator]
    leaves = {name: values[name] for name in INPUTS[case.operator]}
    leaves.update({name: leaves[name].detach().requires_grad_() for name in wanted})
    y = function(*leaves.values())
    return partial(torch.autograd.grad, y, [leaves[name] for name in wanted], values["dy"], retain_graph=True)


@torch.compile(dynamic=False)
def _compiled(dy: torch.Tensor, a: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (dy * x).sum(), a * dy


def _addcmul(case: Case) -> Call:
    values = inputs(replace(case, operator="axpby"))
    return partial(torch.addcmul, values["b"], values["a"], values["x"])


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


def event_clock(call: Call, count: int) -> float:
    """The GPU's own time for back-to-back calls."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in itertools.repeat(None, count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / count


def profiler_clock(call: Call, count: int) -> float:
    """The time inside kernels, without what lies between them."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in itertools.repeat(None, min(count, 200)):
            call()
        torch.cuda.synchronize()
    events = [event for event in profile.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    if not events:
        raise RuntimeError("torch.profiler saw no kernel")
    return statistics.median(event.time_range.elapsed_us() for event in events) * 1e-6


def _launch(case: Case, values: Mapping[str, Any]) -> dict[str, Contender]:
    """relu alone on the GPU, and a kernel of one element for the floor."""
    method, buffers = case.variant.split(", ")
    x = values["x"]
    xs = [x.clone() for _ in range(GRAPH_CALLS)] if buffers == "rotating" else [x] * GRAPH_CALLS
    one = [torch.ones(1, device=case.device) for _ in range(GRAPH_CALLS)]
    result = {}
    for name, relu, arguments in (
        ("fusedops", _functions(case)[0], xs),
        ("eager", torch.relu, xs),
        ("launch floor", torch.relu, one),
    ):
        checked = name != "launch floor"
        if method == "graph":
            result[name] = Contender(_graph(relu, arguments), event_clock, calls=GRAPH_CALLS, checked=checked)
        else:
            result[name] = Contender(_rotating(relu, arguments), profiler_clock, checked=checked)
    return result


def _rotating(function: Callable[..., Any], arguments: list[torch.Tensor]) -> Call:
    """The next argument with each call; outputs are kept for a turn, or one buffer would serve them all."""
    turns, outputs = itertools.cycle(arguments), deque[torch.Tensor](maxlen=len(arguments))

    def call() -> torch.Tensor:
        outputs.append(function(next(turns)))
        return outputs[-1]

    return call


def _graph(function: Callable[..., Any], arguments: list[torch.Tensor]) -> Call:
    """One call for every argument, captured; the outputs are different buffers where the inputs are."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function(arguments[0])
    torch.cuda.synchronize()
    graph, rotating = torch.cuda.CUDAGraph(), arguments[0] is not arguments[-1]
    outputs: list[torch.Tensor] = []
    with torch.cuda.graph(graph, stream=stream):
        for argument in arguments:
            output = function(argument)
            if rotating or not outputs:
                outputs.append(output)

    def replay() -> torch.Tensor:
        graph.replay()
        return outputs[0]

    return replay
