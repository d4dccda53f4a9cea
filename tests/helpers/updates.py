"""Operators that mutate or read lists of tensors: their results, and how to call them.

They have no derivative and no public function, so the other generic suites do not apply.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.helpers.frameworks import Backend
from tests.helpers.numerics import compute_dtype, numpy_dtype, reference_dtype

Array = np.ndarray
Lists = Mapping[str, Sequence[Array]]

SHAPES = ((3,), (0,), (), (5, 7), (2050,), (16384 + 5,), (2, 3, 4))  # chunks have 16384 elements


@dataclass(frozen=True)
class Call:
    """A call of an operator: its lists in the declaration's order, with arrays in their dtypes; its other inputs."""

    lists: Lists
    scalars: Mapping[str, Any] = field(default_factory=dict)  # arrays of one element, numbers or None
    options: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, name: str, tensors: Sequence[Any]) -> Call:
        return replace(self, lists={**self.lists, name: tensors})


class Update:
    """Subclassed once for each operator."""

    name: str
    mutated: tuple[str, ...] = ()  # lists
    single: tuple[str, ...] = ()  # lists of one tensor, which is passed alone
    one_result = False

    def calls(self, dtype: str, random: np.random.Generator) -> list[Call]:
        raise NotImplementedError

    # weighted_means(dtype, random), if the operator has weights: calls with weights from 0 to nearly 1, and terms whose
    # sizes differ by 10^7. A formula that cancels at either end has no correct digit.

    def reference(self, lists: Lists, scalars: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """For every mutated list and the result: the values, the magnitude of their errors, and their number of
        roundings in the compute dtype. The arrays are in the dtype to compute in."""
        raise NotImplementedError

    def run(self, backend: Backend, call: Call, way: str = "eager") -> dict[str, list[Array]]:
        """The mutated lists after the call, or the result. `way`: eager, compiled or another kind of call."""
        run = {"torch": _in_torch, "tf": _in_tensorflow, "jax": _in_jax}[backend.framework]
        return run(self, backend, call, way)


WEIGHTS = (0.0, 1e-9, 0.001, 0.3, 0.5, 0.9, 0.999, 1 - 1e-6)


def sizes(dtype: str) -> Iterable[tuple[float, float]]:
    """Sizes of a moving average and of the gradient that is added to it. Their squares are in the dtype's range."""
    large = 30.0 if dtype == "float16" else 1e4
    return ((large, large * 1e-7), (large * 1e-7, large), (1.0, 1.0))


def geometric(beta: Any, terms: int) -> Any:
    """1 - beta^terms, without cancellation."""
    return (1 - beta) * sum(beta**k for k in range(terms))


def arrays(shapes: Any, dtype: str, random: np.random.Generator) -> list[Array]:
    return [np.asarray(random.normal(size=shape)).astype(numpy_dtype(dtype)) for shape in shapes]


def _in_torch(update: Update, backend: Any, call: Call, way: str) -> dict[str, list[Array]]:
    lists = {name: [backend.from_numpy(x) for x in given] for name, given in call.lists.items()}
    result = raw(update, backend, way)(*leading(update, lists), *_scalars(backend, call), **call.options)
    return _found(update, backend, lists, result)


def _in_tensorflow(update: Update, backend: Any, call: Call, way: str) -> dict[str, list[Array]]:
    made = {True: lambda x: backend.tf.Variable(backend.from_numpy(x)), False: backend.from_numpy}
    lists = {name: [made[name in update.mutated](x) for x in given] for name, given in call.lists.items()}

    function = raw(update, backend, "eager")
    if way != "eager":
        function = backend.tf.function(function, jit_compile=way == "xla")
    result = function(*leading(update, lists), *_scalars(backend, call), **call.options)
    return _found(update, backend, lists, result)


def _in_jax(update: Update, backend: Any, call: Call, way: str) -> dict[str, list[Array]]:
    lists = {name: [backend.from_numpy(x) for x in given] for name, given in call.lists.items()}
    function, scalars = raw(update, backend, "eager"), _scalars(backend, call)

    def called(*tensors: Any) -> Any:
        return function(*tensors, *scalars, **call.options)

    results = (backend.traced(called) if way == "compiled" else called)(*leading(update, lists))
    values = iter(results if isinstance(results, tuple) else (results,))
    result = next(values) if update.one_result else None
    new = {name: next(values) for name in update.mutated}
    new = {name: [x] if name in update.single else x for name, x in new.items()}
    return _found(update, backend, new, result)


def leading(update: Update, lists: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The operator's first arguments."""
    return [tensors[0] if name in update.single else tensors for name, tensors in lists.items()]


def raw(update: Update, backend: Any, way: str) -> Any:
    function = getattr(backend.functions.ops, update.name)
    if way != "compiled":
        return function

    def called(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return backend.traced(called)


def _scalars(backend: Any, call: Call) -> list[Any]:
    is_array = (np.ndarray, np.generic)
    return [backend.from_numpy(np.asarray(x)) if isinstance(x, is_array) else x for x in call.scalars.values()]


def _found(update: Update, backend: Any, lists: Mapping[str, Any], result: Any) -> dict[str, list[Array]]:
    found = {name: [backend.to_numpy(x) for x in lists[name]] for name in update.mutated}
    return {**found, "result": [backend.to_numpy(result)]} if update.one_result else found


def wide(lists: Lists, dtype: str) -> dict[str, list[Array]]:
    return {name: [x.astype(reference_dtype(dtype)) for x in given] for name, given in lists.items()}


class Adamw(Update):
    name = "adamw"
    mutated = ("params", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "steps", "masters")

    def calls(self, dtype, random):
        some = self._call(dtype, dtype, random)
        yield some
        yield replace(some, options={"decoupled": False, "weight_decay": 0.3, "maximize": True, "beta1": 0.5})
        yield replace(some, options={"epsilon_hat": True, "eps": 0.01})
        count = [np.asarray(np.float32(7))] * len(SHAPES)
        scaled = {"grad_scale": np.float32([4]), "found_inf": np.float32([0]), "clip": np.float32(0.5)}
        steps = replace(some.changed("steps", count), scalars={**some.scalars, **scaled})
        yield replace(steps, scalars={**steps.scalars, "lr": 0.25, "step": None})
        yield replace(steps, scalars={**steps.scalars, "found_inf": np.float32(1), "step": None})
        yield self._with_largest(some, random)
        if numpy_dtype(dtype).itemsize == 2:
            some = self._call(dtype, "float32", random)
            with_masters = some.changed("masters", arrays(SHAPES, "float32", random))
            yield from (some, self._with_largest(some, random))
            yield from (with_masters, self._with_largest(with_masters, random))

    def weighted_means(self, dtype, random):
        states = {dtype, "float32"} if numpy_dtype(dtype).itemsize == 2 else {dtype}
        scalars = {"lr": 0.5, "step": np.float32(3), "grad_scale": None, "found_inf": None, "clip": None}
        cases = itertools.product(WEIGHTS, WEIGHTS, sizes(dtype), (False, True), sorted(states))
        for beta1, beta2, (before, now), amsgrad, state in cases:
            p, g, m, v = random.normal(size=(4, 33))
            values = {"params": p, "grads": now * g, "exp_avgs": before * m, "exp_avg_sqs": (before * v) ** 2}
            kinds = {"params": dtype, "grads": dtype, "exp_avgs": state, "exp_avg_sqs": state}
            lists = {name: [x.astype(numpy_dtype(kinds[name]))] for name, x in values.items()}
            lists |= {"max_exp_avg_sqs": [], "steps": [], "masters": []}
            call = Call(lists, scalars, {"beta1": beta1, "beta2": beta2})
            yield self._with_largest(call, random) if amsgrad else call
        for rest in WEIGHTS:  # of a parameter, after its weight decay and a small update
            call = Call({**lists, **{name: [x * 0 for x in lists[name]] for name in ("grads", "exp_avgs")}}, scalars)
            yield replace(call, options={"weight_decay": 2 * (1 - rest)})

    def _with_largest(self, call, random):
        """For AMSGrad: the largest second moment of some elements is a later one, of others an earlier one."""
        seconds = call.lists["exp_avg_sqs"]
        largest = [np.asarray(x * random.choice([0.5, 2], x.shape)).astype(x.dtype) for x in seconds]
        return call.changed("max_exp_avg_sqs", largest)

    def _call(self, dtype, states, random):
        lists = {"params": arrays(SHAPES, dtype, random), "grads": arrays(SHAPES, dtype, random)}
        lists |= {"exp_avgs": arrays(SHAPES, states, random)}
        lists |= {"exp_avg_sqs": list(map(np.abs, arrays(SHAPES, states, random)))}
        lists |= {"max_exp_avg_sqs": [], "steps": [], "masters": []}
        scalars = {"lr": np.float32(0.125), "step": np.float32([3])}
        return Call(lists, {**scalars, "grad_scale": None, "found_inf": None, "clip": None})

    def reference(self, lists, scalars, options):
        options = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, **options}
        decoupled, hat = options.get("decoupled", True), options.get("epsilon_hat", False)
        kind = lists["params"][0].dtype.type
        beta1, beta2, decay = (kind(options[name]) for name in ("beta1", "beta2", "weight_decay"))
        skipped, lr = bool(scalars["found_inf"]), float(scalars["lr"])
        found: dict[str, Any] = {name: [] for name in self.mutated}
        for i, (p, g, m, v) in enumerate(zip(*itertools.islice(lists.values(), 4), strict=True)):
            largest, steps, masters = (lists[name] for name in ("max_exp_avg_sqs", "steps", "masters"))
            before = float(steps[i]) if steps else float(np.squeeze(scalars["step"]))
            start = masters[i] if masters else p
            g = g * (scalars["clip"] or 1) / (np.squeeze(scalars["grad_scale"]) if scalars["grad_scale"] else 1)
            g = (-g if options.get("maximize") else g) + (0 if decoupled else decay * start)
            left1, root2 = geometric(beta1, int(before) + 1), np.sqrt(geometric(beta2, int(before) + 1))
            new_m, new_v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            new_largest = np.maximum(largest[i], new_v) if largest else new_v
            size = lr / left1 / (np.sqrt(new_largest) / root2 + options["eps"] / (root2 if hat else 1))
            decayed = start * (1 - lr * decay) if decoupled else start
            new = decayed - size * new_m
            # A gradient with weight decay is a sum; so is m, which may cancel although its terms do not.
            parts = np.abs(g) + (0 if decoupled else np.abs(decay * start))
            both = beta1 * np.abs(m) + (1 - beta1) * parts
            # float64's bias corrections have their own roundings: of a logarithm, its multiple, an exponential.
            values = {
                "params": (new, np.abs(decayed) + size * both, 24),
                "exp_avgs": (new_m, both, 6),
                "exp_avg_sqs": (new_v, new_v + (1 - beta2) * parts**2, 12),
                "max_exp_avg_sqs": (new_largest, new_largest + (1 - beta2) * parts**2, 12),
                "steps": (before + 1, before + 1, 1),
                "masters": (new, np.abs(decayed) + size * both, 24),
            }
            old = {"params": p, "exp_avgs": m, "exp_avg_sqs": v}
            optional = {"max_exp_avg_sqs": largest, "steps": steps, "masters": masters}
            old |= {name: given[i] for name, given in optional.items() if given}
            for name, x in old.items():
                found[name].append((x, x, 0) if skipped else values[name])
        return found


class Sgd(Update):
    name = "sgd"
    mutated = ("params", "momentums")

    def calls(self, dtype, random):
        lists = {"params": arrays(SHAPES, dtype, random), "grads": arrays(SHAPES, dtype, random), "momentums": []}
        scalars = {"lr": np.float32(0.125), "grad_scale": None, "found_inf": None, "clip": None}
        yield Call(lists, scalars, {"weight_decay": 0.2})
        options: list[dict[str, Any]] = [
            {"momentum": 0.9, "dampening": 0.3},
            {"momentum": 0.9, "dampening": 0.3, "first": True, "maximize": True},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
            {"momentum": 0.9, "velocity": True, "weight_decay": 0.2, "decoupled": True},
            {"momentum": 0.9, "velocity": True, "nesterov": True},
        ]
        some = Call({**lists, "momentums": arrays(SHAPES, dtype, random)}, scalars)
        yield from (replace(some, options=given) for given in options)
        scaled = {"lr": 0.5, "grad_scale": np.float32([4]), "clip": np.float32(0.5)}
        for found in (0, 1):
            yield replace(some, scalars={**scalars, **scaled, "found_inf": np.float32(found)}, options=options[0])
        if numpy_dtype(dtype).itemsize == 2:
            yield replace(some.changed("momentums", arrays(SHAPES, "float32", random)), options=options[0])

    def weighted_means(self, dtype, random):
        scalars = {"lr": 0.5, "grad_scale": None, "found_inf": None, "clip": None}
        for momentum, rest, (before, now) in itertools.product(WEIGHTS, WEIGHTS, sizes(dtype)):
            p, g, b = random.normal(size=(3, 33))
            values = {"params": p, "grads": now * g, "momentums": before * b}
            lists = {name: [x.astype(numpy_dtype(dtype))] for name, x in values.items()}
            yield Call(lists, scalars, {"momentum": momentum, "dampening": 1 - rest})
        for rest in WEIGHTS:  # of a parameter, after its weight decay and a small update
            call = Call({"params": lists["params"], "grads": [x * 0 for x in lists["grads"]], "momentums": []}, scalars)
            yield replace(call, options={"weight_decay": 2 * (1 - rest), "decoupled": True})

    def reference(self, lists, scalars, options):
        kind, lr = lists["params"][0].dtype.type, float(scalars["lr"])
        mu, decay, dampening = (kind(options.get(name, 0)) for name in ("momentum", "weight_decay", "dampening"))
        decoupled, velocity = options.get("decoupled", False), options.get("velocity", False)
        found: dict[str, Any] = {"params": [], "momentums": []}
        for i, (p, g) in enumerate(zip(lists["params"], lists["grads"], strict=True)):
            g = g * (scalars["clip"] or 1) / (np.squeeze(scalars["grad_scale"]) if scalars["grad_scale"] else 1)
            g = (-g if options.get("maximize") else g) + (0 if decoupled else decay * p)
            parts = np.abs(g) + (0 if decoupled else np.abs(decay * p))
            decayed = p * (1 - lr * decay) if decoupled else p
            if not lists["momentums"]:
                found["params"].append((decayed - lr * g, np.abs(decayed) + lr * parts, 8))
                continue
            b = lists["momentums"][i]
            share = -lr if velocity else 1 if options.get("first") else 1 - dampening
            new = share * g + (0 if options.get("first") else mu * b)
            both = np.abs(mu * b) + abs(share) * parts
            direction = (mu * new + (share if velocity else 1) * g) if options.get("nesterov") else new
            size = 1 if velocity else lr
            values = decayed + (direction if velocity else -lr * direction)
            if scalars["found_inf"]:
                found["params"].append((p, p, 0))
                found["momentums"].append((b, b, 0))
            else:
                found["params"].append((values, np.abs(decayed) + size * (both + parts), 12))
                found["momentums"].append((new, both, 6))
        return found


class GlobalNorm(Update):
    name = "global_norm"
    one_result = True

    def calls(self, dtype, random):
        yield Call({"tensors": arrays(SHAPES, dtype, random)})
        yield Call({"tensors": arrays([(0,)], dtype, random)})

    def reference(self, lists, scalars, options):
        norm = np.sqrt(sum(np.sum(x * x) for x in lists["tensors"]))
        return {"result": [(norm, norm, 80)]}  # 64 items of a thread in sequence, then trees


class AccumulateMatmul(Update):
    name = "accumulate_matmul"
    mutated = ("total",)
    single = ("total", "a", "b")

    def calls(self, dtype, random):
        for shape_a, shape_b, options in (
            ((5, 7), (7, 9), {}),
            ((64, 72), (64, 80), {"transpose_a": True}),
            ((130, 24), (17, 24), {"transpose_b": True}),
            ((2, 24, 3), (2, 8, 24), {"transpose_a": True, "transpose_b": True}),
            ((3, 4, 5), (5, 6), {}),
            ((1, 700), (700, 1), {}),
            ((4, 0), (0, 3), {}),
            ((0, 4), (4, 3), {}),
        ):
            a, b = arrays((shape_a, shape_b), dtype, random)
            shape = self._product(a, b, options).shape
            yield Call({"total": arrays([shape], compute_dtype(dtype), random), "a": [a], "b": [b]}, options=options)

    def _product(self, a, b, options):
        turned = (x.swapaxes(-1, -2) if options.get(f"transpose_{name}") else x for name, x in (("a", a), ("b", b)))
        return np.matmul(*turned)

    def reference(self, lists, scalars, options):
        (total,), (a,), (b,) = lists.values()
        depth = a.shape[-2 if options.get("transpose_a") else -1]
        magnitude = np.abs(total) + self._product(np.abs(a), np.abs(b), options)
        return {"total": [(total + self._product(a, b, options), magnitude, depth + 2)]}


UPDATES = (Adamw(), Sgd(), GlobalNorm(), AccumulateMatmul())
OPERATORS = frozenset(update.name for update in UPDATES)
