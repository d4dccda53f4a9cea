"""PyTorch: fusedops, eager torch, torch.compile, other libraries, and the floors."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._inductor.config as inductor

import fusedops.torch as fo
from benchmarks.cases.attention import NARROW, NARROW_FEATURES
from benchmarks.cases.case import (
    BOTH,
    CALLS,
    DISTRIBUTED,
    FIRST_USE,
    GROWTH,
    HOST_SECTIONS,
    OPTIMIZERS,
    RECORDED,
    STEPS,
    Case,
)
from benchmarks.implementations.torch import caches, first_use, libraries, llama, models, optimizers, ranks, steps
from benchmarks.implementations.torch.clocks import EventClock, graph, profiler_clock
from benchmarks.implementations.torch.functions import FUNCTIONS, matmul
from benchmarks.measuring.timing import Build, Call, Clock, HostClock, Implementation
from benchmarks.operators import OPERATORS, layouts
from benchmarks.operators.layouts import drawn, dtype_of, expression, has_both, public
from benchmarks.operators.record import Function, Input, Layout

NAME, TITLE = "torch", "PyTorch"
# Sections whose implementations make their inputs themselves.
OWN = {
    STEPS: steps,
    OPTIMIZERS: optimizers,
    DISTRIBUTED: ranks,
    "transformers": llama,
    "families": models,
    "generation": models,
}
GRAPH_CALLS = 128  # rotating calls use as many buffers, a GiB in total, far more than a cache holds

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def version() -> str:
    return f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.version.cuda else torch.__version__


def has_gpu() -> bool:
    return torch.cuda.is_available()


def synchronize() -> None:
    """Waits for the GPU. Errors of earlier kernels are raised here."""
    torch.cuda.synchronize()


def cache_size() -> int:
    """The size of the GPU's L2 cache in bytes."""
    return caches.cache_size()


def load_baselines() -> list[str]:
    """Loads other libraries. Returns sentences on missing ones."""
    return libraries.load()


def memory(call: Call) -> tuple[int, int]:
    """Bytes of GPU memory in use before a call, and the peak during it."""
    call()  # autotuning uses memory in the first call
    torch.cuda.synchronize()
    gc.collect()  # garbage that is freed during the call would lower the peak
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return before, torch.cuda.max_memory_allocated()


def disable_autotune_cache() -> None:
    """Disables torch's autotuning cache: processes that share the GPU tune badly, and must not affect measurements."""
    inductor.autotune_local_cache = False


@contextmanager
def on(device: str) -> Iterator[None]:
    """Prepares for a case. Does not set torch.device, which would cost every call several microseconds."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()  # after eight shapes of one formula, torch.compile would fall back to eager
    yield


def inputs(case: Case) -> dict[str, Any]:
    torch.manual_seed(0)
    return drawn(case, _draw)


def _draw(case: Case, x: Input, layout: Layout) -> torch.Tensor:
    options: dict[str, Any] = {"dtype": getattr(torch, dtype_of(case, x)), "device": case.device}
    if x.integers:
        return torch.from_numpy(x.integers(case)).to(case.device)
    if x.classes:
        return torch.randint(x.classes(case), layout.shape, device=case.device)
    if callable(x.values):
        return torch.from_numpy(x.values(layout.shape)).to(**options)
    return torch.randn(layout.shape, **options) if x.values is None else torch.tensor(x.values, **options)


def wide(tensor: torch.Tensor, places: np.ndarray | slice | None, axis: int | None) -> torch.Tensor:
    """A selection of a tensor along an axis, or all of it, in float64; integers are not converted."""
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.float()  # index_select does not support float8
    if isinstance(places, slice):
        tensor = tensor.narrow(axis or 0, places.start, places.stop - places.start)
    elif places is not None:
        tensor = tensor.index_select(axis or 0, torch.from_numpy(places).to(tensor.device))
    return tensor.double() if tensor.is_floating_point() else tensor


def norm(tensor: torch.Tensor) -> float:
    return torch.linalg.vector_norm(tensor.double()).item()


def formula(case: Case) -> Function:
    return layouts.formula(FUNCTIONS, matmul, case)


def _eager(case: Case) -> Function:
    """PyTorch's own operator, or the formula if there is none."""
    own = OPERATORS[case.operator].torch
    return own(torch) if own else formula(case)


def call(case: Case, function: Function, values: Mapping[str, Any]) -> Call:
    """The call to be timed, which returns outputs, gradients, or both."""
    operator = OPERATORS[case.operator]
    given = {name: values[name] for name in operator.names}
    if "backward" not in case.variant and case.variant != RECORDED:
        return partial(function, *given.values())
    given.update({name: given[name].detach().requires_grad_() for name in operator.wanted})
    leaves = [given[name] for name in operator.wanted]
    upstream = [value for name, value in values.items() if name not in given] or None
    arguments = tuple(given.values())
    if case.variant == RECORDED:
        return partial(function, *arguments)
    if case.variant == "backward":  # the backward only, over a retained graph
        return partial(torch.autograd.grad, function(*arguments), leaves, upstream, retain_graph=True)

    def step() -> tuple[torch.Tensor, ...]:
        outputs = function(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return *outputs, *torch.autograd.grad(outputs, leaves, upstream)

    return step


def implementations(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    if case.section == "launch":
        return _launch(case, values)
    if case.section in OWN:
        return OWN[case.section].implementations(case, partial(_clock, case))
    if case.section == FIRST_USE:
        return first_use.implementations(case, values, partial(_clock, case))
    turns = caches.copies(case, values)

    def timed(function: Callable[[], Function], own: Callable[..., Mapping[str, Any]] = lambda x: x) -> Build:
        """Defers all work to the build, so that an implementation that fails does not affect the others."""
        return lambda: _timed(case, _calls(case, function(), map(own, turns)))

    result = {
        "fusedops": timed(lambda: public(fo, case)),
        "eager": timed(partial(_eager, case)),
    }
    if has_both(case) and case.section not in GROWTH:  # an expression is compiled for every row length
        result["fusedops, expression"] = timed(partial(expression, fo, case))
    if case.section in CALLS:
        return result | _call_baselines(case, values)
    if case.device == "cpu" and (case.operator, case.variant) == ("axpby", "forward"):
        result["addcmul"] = lambda: Implementation(_addcmul(case), _clock(case), checked=False)
    if not case.is_arithmetic and case.section != "python":
        result["copy"] = lambda: _copy(case, turns)
    if OPERATORS[case.operator].without:
        result["without"] = lambda: _without(case, turns)
    if case.is_layer:
        result["products"] = lambda: _products(case, turns)
    if case.device == "cpu":
        return result
    if len(case.frameworks) > 1 and case.section != "seeds":
        synchronized = HostClock(torch.cuda.synchronize)
        result["fusedops, host clock"] = lambda: Implementation(call(case, public(fo, case), values), synchronized)
    if case.section in GROWTH:  # compilers and other libraries would recompile for every row length
        return result
    if case.is_attention and case.shape[-1] > NARROW_FEATURES:
        result[NARROW] = lambda: _narrow(case, turns)
        return result
    for name, build in OPERATORS[case.operator].torch_others.items():
        result[name] = timed(partial(build, torch))
    if not case.is_arithmetic or case.is_layer:
        result["compiled"] = timed(lambda: torch.compile(formula(case), dynamic=False))
    for name, library in libraries.FUNCTIONS.items():
        if case.operator in library:
            own = partial(libraries.arguments, name, case.operator)
            result[name] = timed(partial(library.__getitem__, case.operator), own)
    return result


def _call_baselines(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    """A call of torch's own addcmul, and of the registered operator."""
    result = {"addcmul": lambda: Implementation(_addcmul(case), _clock(case), checked=False)}
    if case.variant == "forward" and OPERATORS[case.operator].elementwise:
        result["torch.ops"] = lambda: Implementation(_raw(case, values), _clock(case))
    return result


def _clock(case: Case) -> Clock:
    if case.section == DISTRIBUTED:
        return ranks.SlowestRank(case.device)
    if case.device == "cpu":
        return HostClock()
    uses_host_clock = case.section in ("seeds", "families", STEPS, OPTIMIZERS, *HOST_SECTIONS)
    return HostClock(torch.cuda.synchronize) if uses_host_clock else EventClock()


def _calls(case: Case, function: Function, turns: Iterable[Mapping[str, Any]]) -> list[Call]:
    return [call(case, function, values) for values in turns]


def _timed(case: Case, calls: Sequence[Call], **more: Any) -> Implementation:
    """Times the calls in turn; for small inputs as a CUDA graph, since issuing takes longer than running them."""
    if len(calls) == 1:
        return Implementation(calls[0], _clock(case), **more)
    if case.unit == "B" and "backward" not in case.variant:
        whole, flushed = graph(_run, [(call,) for call in calls]), EventClock(caches.flush, every=1)
        return Implementation(whole, flushed, calls=len(calls), once=calls[0], **more)
    flushed = EventClock(caches.flush, every=len(calls))
    return Implementation(_rotating(calls), flushed, once=calls[0], **more)


def _run(call: Call) -> Any:
    return call()


def _copy(case: Case, turns: Sequence[Mapping[str, Any]]) -> Implementation:
    """A copy, whose bandwidth defines the floor of a case."""
    xs = [next(x for x in values.values() if isinstance(x, torch.Tensor) and x.shape == case.shape) for values in turns]
    copies = [partial(torch.empty_like(x).copy_, x) for x in xs]
    return _timed(case, copies, work=2.0 * xs[0].numel() * xs[0].element_size(), checked=False)


def _without(case: Case, turns: Sequence[Mapping[str, Any]]) -> Implementation:
    """The same operator without an option."""
    plain = replace(case, operator=OPERATORS[case.operator].without)
    extra = {*OPERATORS[case.operator].names} - {*OPERATORS[plain.operator].names}
    kept = [{name: value for name, value in values.items() if name not in extra} for values in turns]
    return _timed(case, _calls(plain, public(fo, plain), kept), checked=False)


def _narrow(case: Case, turns: Sequence[Mapping[str, Any]]) -> Implementation:
    """cuDNN's attention on as many of the features as it takes."""
    narrow = replace(case, shape=(*case.shape[:-1], NARROW_FEATURES))
    cut = [{name: x[..., :NARROW_FEATURES].contiguous() for name, x in values.items()} for values in turns]
    calls = _calls(narrow, OPERATORS[case.operator].torch_others["cuDNN"](torch), cut)
    return _timed(case, calls, work=case.work * NARROW_FEATURES / case.shape[-1], checked=False)


def _products(case: Case, turns: Sequence[Mapping[str, Any]]) -> Implementation:
    """The floor of a layer: the matrix products of its forward and backward. Results stand in for their gradients."""
    operator = OPERATORS[case.operator]
    made = operator.products or _by_weights

    def products(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        found = [x @ w.mT for x, w in pairs]
        if case.variant == BOTH:
            trained = list(zip(found, pairs, strict=True))[: len(pairs) - operator.frozen_weights]
            found += [each for dz, (x, w) in trained for each in (dz @ w, dz.mT @ x)]
        return found

    return _timed(case, [partial(products, made(values)) for values in turns], checked=False)


def _by_weights(values: Mapping[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(values["x"], value) for name, value in values.items() if name.endswith("weight")]


def _addcmul(case: Case) -> Call:
    case = replace(case, operator="axpby", variant=case.variant if case.variant in (RECORDED, BOTH) else "forward")
    return call(case, lambda a, x, b: torch.addcmul(b, a, x), inputs(case))


def _raw(case: Case, values: Mapping[str, Any]) -> Call:
    """A call of the registered operator without the public function."""
    arguments = OPERATORS[case.operator].registered or (lambda *inputs: inputs)
    return partial(getattr(torch.ops.fusedops, case.operator).default, *arguments(*values.values()))


def _launch(case: Case, values: Mapping[str, Any]) -> dict[str, Build]:
    """relu's GPU time, and as its floor that of a kernel for one element."""
    method, buffers = case.variant.split(", ")
    x = values["x"]
    same = [(x,)] * GRAPH_CALLS
    xs = [(x.clone(),) for _ in range(GRAPH_CALLS)] if buffers == "rotating" else same
    one = [(torch.ones(1, device=case.device),) for _ in range(GRAPH_CALLS)]

    def build(function: Function, arguments: list[tuple[torch.Tensor]], checked: bool) -> Implementation:
        calls = [partial(function, *some) for some in arguments]
        if method == "graph":
            whole = graph(function, arguments)
            return Implementation(whole, EventClock(), calls=GRAPH_CALLS, once=calls[0], checked=checked)
        return Implementation(_rotating(calls), profiler_clock, once=calls[0], checked=checked)

    return {
        "fusedops": partial(build, public(fo, case), xs, True),
        "eager": partial(build, torch.relu, xs, True),
        "launch floor": partial(build, torch.relu, one, False),
    }


def _rotating(calls: Sequence[Call]) -> Call:
    """A call that runs the next one of `calls`. Outputs live for one turn, so that each call has its own buffer."""
    turns, outputs = itertools.cycle(calls), deque[Any](maxlen=len(calls))

    def call() -> Any:
        outputs.append(next(turns)())
        return outputs[-1]

    return call
