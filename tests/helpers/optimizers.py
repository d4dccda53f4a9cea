"""Options of the optimizers of both packages, and training with every kind of step.

An option is a set of constructor arguments and of arguments for the training, which the framework's class below
documents. The framework's own optimizer trains with the same options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.helpers.numerics import numpy_dtype

Array = np.ndarray

SHAPES = ((33,), (5, 7), ())
STEPS = 5
RATE = 0.0625
SIZES = (1.0, 4.0, 0.25, 2.0, 0.5)  # scales of each step's gradients: Adam is nearly invariant to a common factor
# representable in float32: Keras rounds betas to it in its bias corrections, also in float64
BETAS = (0.875, 1 - 2.0**-10)


@dataclass(frozen=True, eq=False)  # hashed by identity: results of an option are cached
class Option:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Any] = field(default_factory=dict)  # the remaining arguments if the option is left out
    has_effect: bool = True  # False: the option does not change results
    is_captured: bool = True  # False: a CUDA graph cannot capture the step
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.name.replace(" ", "_")

    @property
    def all(self) -> dict[str, Any]:
        return {**self.without, **self.arguments}


def gradients(step: int, sizes: Sequence[float] = SIZES) -> list[Array]:
    """Random numbers representable in bfloat16."""
    random = np.random.default_rng(step)
    return [np.asarray(sizes[step] * random.normal(size=x)).astype(ml_dtypes.bfloat16) for x in SHAPES]


def starts() -> list[Array]:
    random = np.random.default_rng(100)
    return [np.asarray(random.normal(size=shape)).astype(ml_dtypes.bfloat16).astype(np.float64) for shape in SHAPES]


def assert_as_good(
    ours: Sequence[Array], theirs: Sequence[Array], exact: Sequence[Array], dtype: str, steps: int = STEPS
) -> None:
    """The error is at most twice that of the framework's own optimizer in the same dtype, plus two roundings of each
    tensor's largest number and those of the reference in float64."""
    roundings = 2 * float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) + steps * np.finfo("float64").eps
    for x, y, z in zip(ours, theirs, exact, strict=True):
        if z.size:
            limit = 2 * np.abs(y - z).max() + roundings * np.abs(z).max()
            assert np.abs(x - z).max() <= limit, f"errs by {np.abs(x - z).max()}, more than {limit}"


# Names that begin with an underscore are arguments of the training, not of a constructor.
_COMMON_IN_TORCH = (
    Option("lr", {"lr": 0.25}),
    Option("tensor as lr", {"_tensor_lr": True}, has_effect=False),
    Option("schedule", {"_schedule": 0.5}),
    Option("weight_decay", {"weight_decay": 0.25}),
    Option("maximize", {"maximize": True}),
    Option("max_grad_norm", {"max_grad_norm": 0.5}),
    Option("second group", {"_second": {"lr": 0.25, "weight_decay": 0.5}}),
    Option("clipped second group", {"max_grad_norm": 0.5, "_second": {"lr": 0.25, "maximize": True}}),
    Option("scaled gradients", {"_scaled": True}),
    Option("scaled and clipped gradients", {"_scaled": True, "max_grad_norm": 0.5}, {"_scaled": True}),
    Option("missing gradients", {"_missing": True}, is_captured=False),
    Option("foreach", {"foreach": True}, has_effect=False, is_captured=False),
    Option("fused", {"fused": True}, has_effect=False),
)


def _differentiable(**without: Any) -> tuple[Option, ...]:
    """Options for a group that torch's own code updates."""
    more: dict[str, Any] = {"without": without, "is_captured": False}
    second = {**without, "_second": {"differentiable": True}}
    return (
        Option("differentiable", second, has_effect=False, **more),
        Option("clipped differentiable", {**second, "max_grad_norm": 0.5}, **more),
    )


# Their powers are exact in float32, in which torch computes bias corrections of differentiable steps.
_EXACT = {"betas": (0.5, 0.75)}
_ADAM_IN_TORCH = (
    *_COMMON_IN_TORCH,
    *_differentiable(**_EXACT),
    Option("betas", {"betas": (0.5, 0.75)}),
    Option(
        "first beta of zero", {"betas": (0.0, 0.99), "_sizes": (1e4, 1e-3, 1e4, 1e-3, 1e-3)}, {"betas": (0.1, 0.99)}
    ),
    Option("second beta of zero", {"betas": (0.9, 0.0), "_sizes": (1e4, 1e-3, 1e4, 1e-3, 1e-3)}, {"betas": (0.9, 0.1)}),
    Option(
        "tensors as betas",
        {"_tensor_betas": True},
        {"betas": BETAS, "foreach": False},
        has_effect=False,
        is_captured=False,
    ),
    Option("eps", {"eps": 0.5}),
    Option("amsgrad", {"amsgrad": True, "betas": (0.9, 0.5)}, {"betas": (0.9, 0.5)}),
    Option("capturable", {"capturable": True}, has_effect=False),
    Option("master_weights", {"master_weights": True}, dtype="bfloat16"),
    Option("clipped master_weights", {"master_weights": True, "max_grad_norm": 0.5}, dtype="bfloat16"),
)
IN_TORCH = {
    "AdamW": _ADAM_IN_TORCH,
    "Adam": (
        *_ADAM_IN_TORCH,
        Option(
            "decoupled_weight_decay", {"decoupled_weight_decay": True, "weight_decay": 0.25}, {"weight_decay": 0.25}
        ),
    ),
    "SGD": (
        *_COMMON_IN_TORCH,
        *_differentiable(),
        Option("momentum", {"momentum": 0.875}),
        Option("dampening", {"dampening": 0.25}, {"momentum": 0.875}),
        Option("nesterov", {"nesterov": True}, {"momentum": 0.875}),
    ),
}
_SPEED = ("foreach", "fused", "capturable")  # the reference is torch's plain code


class TorchTraining:
    """A model, and an optimizer of `module`: fusedops.torch.optim or torch.optim.

    `_tensor_lr`, `_tensor_betas`: these are tensors. `_schedule`: a factor for the learning rate after each step.
    `_second`: options of a second group. `_scaled`: gradients have a factor that the optimizer divides by, and one step
    is skipped, as a torch.amp.GradScaler requests. `_missing`: every second step, a parameter has no gradient.
    `_sizes`: the scales of each step's gradients.
    """

    ways = ("eager", "closure", "compiled step", "compiled training", "captured")

    def __init__(
        self, backend: Any, module: Any, kind: str, arguments: Mapping[str, Any], dtype: str, way: str
    ) -> None:
        self.torch, self.backend, self.way = backend.torch, backend, way
        self.is_ours = module is not self.torch.optim
        given = {"lr": RATE, **arguments}
        self.schedule, self.second = given.pop("_schedule", 1.0), given.pop("_second", {})
        self.is_scaled, self.has_missing = given.pop("_scaled", False), given.pop("_missing", False)
        self.sizes, self.norm = given.pop("_sizes", SIZES), None
        if given.pop("_tensor_lr", False) or way == "captured":
            given["lr"] = self._tensor(given["lr"])
            self.second = {name: self._tensor(x) if name == "lr" else x for name, x in self.second.items()}
        if given.pop("_tensor_betas", False):
            given["betas"] = tuple(map(self._tensor, given["betas"]))
        if not self.is_ours:
            self.norm = given.pop("max_grad_norm", None)
            given = {name: x for name, x in given.items() if name not in (*_SPEED, "master_weights")} | {
                "foreach": False
            }
        self.params = [self.torch.nn.Parameter(self._array(x, dtype)) for x in starts()]
        groups = [{"params": self.params[:1]}, {"params": self.params[1:], **self.second}]
        self.optimizer = getattr(module, kind)(groups, **given)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], self.torch.Tensor):
                group["lr"] = group["lr"].clone()  # the schedule changes each group's own tensor
        self.scale, self.found_inf = self._tensor(4.0), self._tensor(0.0)

    def _tensor(self, number: float) -> Any:
        return self.torch.tensor(number, dtype=self.torch.float32, device=self.backend.device)

    def _array(self, x: Array, dtype: str) -> Any:
        return self.backend.from_numpy(x.astype(numpy_dtype(dtype)))

    def run(self) -> list[Array]:
        """The parameters after all steps, or their float32 copies."""
        torch = self.torch
        torch.compiler.reset()
        step = self.optimizer.step
        train = self._train
        if self.way == "compiled step":
            step = torch.compile(step, backend="eager")
        if self.way == "compiled training":
            train = torch.compile(train, backend="aot_eager")
        for number in range(STEPS):
            self.is_skipped = self.is_scaled and number == 2
            if self.is_ours and self.is_scaled:
                self.found_inf.fill_(self.is_skipped)
                self.optimizer.grad_scale, self.optimizer.found_inf = self.scale, self.found_inf
            given = self._gradients(number)
            if self.way == "captured" and number:
                if number == 1:
                    step = self._captured()
                for p, grad in zip(self.params, given, strict=True):
                    p.grad.copy_(grad)
                step()
            else:
                train(given, step)
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].mul_(self.schedule)
                else:
                    group["lr"] *= self.schedule
        states = [self.optimizer.state.get(p, {}) for p in self.params]
        found = [state.get("master_param", p) for p, state in zip(self.params, states, strict=True)]
        return [self.backend.to_numpy(x.double()) for x in found]

    def _gradients(self, number: int) -> list[Any]:
        factor = 4 if self.is_ours and self.is_scaled else 1
        found = [self._array(factor * x.astype(np.float64), "float64") for x in gradients(number, self.sizes)]
        given = [x.to(p.dtype) for x, p in zip(found, self.params, strict=True)]
        return [None if i == 1 and self.has_missing and number % 2 else x for i, x in enumerate(given)]

    def _loss(self, given: Sequence[Any]) -> Any:
        """A loss whose gradients are these tensors."""
        losses = [(p * grad).sum() for p, grad in zip(self.params, given, strict=True) if grad is not None]
        return sum(losses[1:], losses[0])

    def _train(self, given: Sequence[Any], step: Any) -> None:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = self._loss(given)
            loss.backward()
            return loss

        if self.way == "closure":
            step(closure)
            return
        closure()
        if self.norm is not None:
            self.torch.nn.utils.clip_grad_norm_(self.params, self.norm)
        if self.is_ours or not self.is_skipped:
            step()

    def _captured(self) -> Any:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            self.optimizer.step()
        return graph.replay


_COMMON_IN_KERAS = (
    Option("learning_rate", {"learning_rate": 0.25}),
    Option("schedule", {"_schedule": 0.5}),
    Option("weight_decay", {"weight_decay": 0.25}),
    Option("some do not decay", {"_excluded": True, "weight_decay": 0.25}, {"weight_decay": 0.25}),
    Option("clipnorm", {"clipnorm": 0.5}),
    Option("clipvalue", {"clipvalue": 0.25}),
    Option("global_clipnorm", {"global_clipnorm": 0.5}),
    Option("negative global_clipnorm", {"global_clipnorm": -0.5}, has_effect=False),
    Option("use_ema", {"use_ema": True}),
    Option("ema_momentum", {"ema_momentum": 0.5}, {"use_ema": True}),
    Option("ema_overwrite_frequency", {"ema_overwrite_frequency": 2}, {"use_ema": True}),
    Option("gradient_accumulation_steps", {"gradient_accumulation_steps": 2}),
    Option("clipped accumulation", {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5}),
    Option("missing gradients", {"_missing": True}),
    Option("sparse gradients", {"_sparse": True}, has_effect=False),
    Option("clipped sparse gradients", {"_sparse": True, "global_clipnorm": 0.5}),
    Option("a LossScaleOptimizer", {"_scaled": True}, has_effect=False),
    Option("a clipped LossScaleOptimizer", {"_scaled": True, "global_clipnorm": 0.5}),
)
_ADAM_IN_KERAS = (
    *_COMMON_IN_KERAS,
    Option("loss_scale_factor", {"loss_scale_factor": 4.0}, {"epsilon": 0.25}),
    Option("beta_1", {"beta_1": 0.5}),
    Option("beta_2", {"beta_2": 0.75}),
    Option("tensors as betas", {"_tensor_betas": True}, has_effect=False),
    Option("epsilon", {"epsilon": 0.5}),
    Option("amsgrad", {"amsgrad": True}, {"beta_2": 0.5}),
)
IN_KERAS = {
    "AdamW": _ADAM_IN_KERAS,
    "Adam": _ADAM_IN_KERAS,
    "SGD": (
        *_COMMON_IN_KERAS,
        Option("loss_scale_factor", {"loss_scale_factor": 4.0}),
        Option("momentum", {"momentum": 0.875}),
        Option("nesterov", {"nesterov": True}, {"momentum": 0.875}),
    ),
}


class KerasTraining:
    """Variables, and an optimizer of `module`: fusedops.tf.keras.optimizers or keras.optimizers.

    `_schedule`: a factor for the learning rate after each step. `_excluded`: the first variable does not decay.
    `_missing`: a variable has no gradient. `_sparse`: the matrix has a sparse one. `_scaled`: a LossScaleOptimizer
    wraps the optimizer. `_tensor_betas`: these are tensors.
    """

    ways = ("eager", "graph", "xla", "strategy")

    def __init__(
        self, backend: Any, module: Any, kind: str, arguments: Mapping[str, Any], dtype: str, way: str
    ) -> None:
        import keras

        self.tf, self.dtype, self.way = backend.tf, dtype, way
        given = {"learning_rate": RATE, **arguments}
        self.schedule, excluded = given.pop("_schedule", None), given.pop("_excluded", False)
        self.has_missing, self.is_sparse = given.pop("_missing", False), given.pop("_sparse", False)
        self.is_scaled = given.pop("_scaled", False)
        if kind != "SGD":
            given = {"beta_1": BETAS[0], "beta_2": BETAS[1], **given}
            if given.pop("_tensor_betas", False):
                given |= {name: self.tf.constant(given[name], dtype) for name in ("beta_1", "beta_2")}
        if self.schedule:
            rate = given["learning_rate"]
            given["learning_rate"] = keras.optimizers.schedules.ExponentialDecay(rate, 1, self.schedule)
        self.place: Any = None
        if way == "strategy":
            where = "GPU:0" if backend.device == "cuda" else "CPU:0"
            self.place = self.tf.distribute.OneDeviceStrategy(where)
            with self.place.scope():
                self._build(keras, module, kind, given, excluded)
        else:
            self._build(keras, module, kind, given, excluded)

    def _build(self, keras: Any, module: Any, kind: str, given: Mapping[str, Any], excluded: bool) -> None:
        self.variables = [keras.Variable(x, dtype=self.dtype) for x in starts()]
        self.inner = self.optimizer = getattr(module, kind)(**given)
        if excluded:
            self.inner.exclude_from_weight_decay(var_list=self.variables[:1])
        if self.is_scaled:
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.inner, 4.0, dynamic_growth_steps=2)
        self.optimizer.build(self.variables)

    def run(self) -> list[Array]:
        """The variables after all steps, and their moving averages."""
        tf = self.tf
        function = self._apply
        if self.way == "strategy":
            step = tf.function(function)
            function = lambda given: self.place.run(step, args=(given,))  # noqa: E731
        elif self.way != "eager":
            function = tf.function(function, jit_compile=self.way == "xla")
        for number in range(STEPS):
            function(self._gradients(number))
        averages = self.inner._model_variables_moving_average if self.inner.use_ema else []
        return [np.asarray(x.numpy(), "float64") for x in (*self.variables, *averages)]

    def _apply(self, given: Sequence[Any]) -> None:
        tf = self.tf
        scale = self.optimizer.scale_loss(tf.ones((), self.dtype))
        scaled = [x * tf.cast(scale, self.dtype) if self.is_scaled else x for x in given]
        if self.is_sparse:
            scaled[1] = tf.IndexedSlices(scaled[1], tf.range(5), tf.constant([5, 7]))
        if self.has_missing:
            scaled[1] = None
        self.optimizer.apply(scaled, self.variables)

    def _gradients(self, number: int) -> list[Any]:
        return [self.tf.constant(x.astype(np.float64), self.dtype) for x in gradients(number)]


TRAININGS = {"torch": (TorchTraining, IN_TORCH), "tf": (KerasTraining, IN_KERAS)}
