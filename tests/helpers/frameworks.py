"""One interface to all frameworks for the suites: a backend is a framework on a device."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tests.helpers.numerics import rounded
from tests.helpers.specification import Like, Sample, Specification
from tests.specifications import SPECIFICATIONS

BOTH = ("torch", "tf")
FRAMEWORKS = (*BOTH, "jax")
PACKAGES = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}
DEVICES = ("cpu", "cuda")

Tensors = Mapping[str, Any]


class Backend:
    framework: str
    errors: tuple[type[Exception], ...]  # errors of a refused call

    def __init__(self, device: str) -> None:
        self.device = device
        self.functions = importlib.import_module(f"fusedops.{self.framework}")
        self.made = {
            spec.name: spec.made_by(self.functions)
            for spec in SPECIFICATIONS
            if spec.name not in self.functions.__all__
        }
        self.positions = {
            name: [p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
            for name, function in {**vars(self.functions), **self.made}.items()
            if inspect.isfunction(function) or isinstance(function, functools.partial)
        }

    def __str__(self) -> str:
        return f"{self.framework}-{self.device}"

    def tensors(self, sample: Sample, dtype: str, spec: Specification | None = None) -> dict[str, Any]:
        """The sample's inputs, its arrays of float64 in dtype; with a spec, its parameters and terms in float32."""
        parameters = (*spec.parameters, *spec.terms) if spec else ()

        def dtype_of(name: str, array: np.ndarray) -> str:
            return "float32" if name in parameters or array.dtype == np.float32 else dtype

        return {
            name: self.tensor(value, dtype_of(name, value)) if isinstance(value, np.ndarray) else value
            for name, value in sample.inputs.items()
        }

    def tensor(self, array: np.ndarray, dtype: str) -> Any:
        """A tensor on the device; only floating arrays are rounded to dtype."""
        array = np.asarray(array)
        return self.from_numpy(rounded(array, dtype) if array.dtype.kind == "f" else array)

    def like(self, value: Any) -> Any:
        if isinstance(value, Like):
            dtype = ml_dtypes.bfloat16 if value.dtype == "bfloat16" else value.dtype
            return self.from_numpy(np.ones(value.shape, dtype))
        return value

    def numpy(self, inputs: Tensors, dtype: Any) -> dict[str, Any]:
        """The inputs of a reference: the values after rounding, in the dtype to compute in."""

        def array(tensor: Any) -> np.ndarray:
            values = self.to_numpy(tensor)
            return values if values.dtype.kind in "iub" else values.astype(dtype)

        return {name: array(value) if self.is_tensor(value) else value for name, value in inputs.items()}

    def call(self, name: str, inputs: Tensors, options: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The public function's outputs. Inputs are positional, except keyword-only ones and those after an option."""
        places = tuple(self.positions.get(name, inputs))
        positional, named = [], dict(inputs)
        for place, (given, value) in zip(places, inputs.items(), strict=False):
            if place != given:
                break
            positional.append(value)
            del named[given]
        result = self.public(name)(*positional, **named, **(options or {}))
        return result if isinstance(result, tuple) else (result,)

    def public(self, name: str) -> Callable[..., Any]:
        return self.made[name] if name in self.made else getattr(self.functions, name)

    def upstream(self, outputs: Iterable[Any], seed: int = 1) -> tuple[Any, ...]:
        """A random gradient for each output."""
        random = np.random.default_rng(seed)
        return tuple(self.tensor(random.normal(size=tuple(output.shape)), self.dtype_of(output)) for output in outputs)

    # Each framework adds the following.
    @property
    def place(self) -> contextlib.AbstractContextManager[Any]:
        """The device scope of operations without tensor inputs; a test's fixture enters it."""
        return contextlib.nullcontext()

    def from_numpy(self, array: np.ndarray) -> Any:
        raise NotImplementedError

    def to_numpy(self, tensor: Any) -> np.ndarray:
        raise NotImplementedError

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        raise NotImplementedError

    def is_tensor(self, value: Any) -> bool:
        raise NotImplementedError

    def dtype_of(self, tensor: Any) -> str:
        raise NotImplementedError

    def device_of(self, tensor: Any) -> str:
        raise NotImplementedError

    def gradients(
        self,
        name: str,
        inputs: Tensors,
        options: Mapping[str, Any],
        wanted: tuple[str, ...],
        upstream: tuple[Any, ...] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The outputs, and the gradients of the wanted inputs for a random upstream gradient."""
        raise NotImplementedError

    def second_gradients(
        self,
        name: str,
        inputs: Tensors,
        options: Mapping[str, Any],
        wanted: tuple[str, ...],
        upstream: Callable[[Any], Any],
    ) -> list[Any]:
        """The gradients of the wanted inputs' gradients: with respect to these inputs, and to the upstream gradient of
        each output. upstream(y) makes the upstream gradient of y."""
        raise NotImplementedError

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled by the framework, with known shapes."""
        raise NotImplementedError


class Torch(Backend):
    framework = "torch"
    errors = (RuntimeError, TypeError, ValueError)

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        super().__init__(device)

    @staticmethod
    def gpus() -> int:
        import torch

        return torch.cuda.device_count()

    def from_numpy(self, array: np.ndarray) -> Any:
        array = np.array(array, order="C")
        if array.dtype == ml_dtypes.bfloat16:
            return self._on_device(self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16))
        return self._on_device(self.torch.from_numpy(array))

    def _on_device(self, tensor: Any) -> Any:
        """Does not wait for the GPU: CUDA has read pageable memory when the call returns."""
        return tensor.to(self.device, non_blocking=True)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        tensor = tensor.detach().cpu().resolve_neg()
        name = self.dtype_of(tensor)
        if name == "bfloat16" or name.startswith("float8"):
            integers = self.torch.int16 if name == "bfloat16" else self.torch.int8
            return tensor.contiguous().view(integers).numpy().view(getattr(ml_dtypes, name))
        return tensor.numpy()

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return tensor.reshape(shape)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def device_of(self, tensor: Any) -> str:
        return tensor.device.type

    def leaves(self, inputs: Tensors, wanted: Iterable[str]) -> dict[str, Any]:
        """The inputs with their memory layout; the wanted ones require a gradient."""
        return {name: value.detach().requires_grad_() if name in wanted else value for name, value in inputs.items()}

    def gradients(self, name, inputs, options, wanted, upstream=None):
        inputs = self.leaves(inputs, wanted)
        outputs = self.call(name, inputs, options)
        upstream = upstream or self.upstream(outputs)
        found = self.torch.autograd.grad(outputs, [inputs[name] for name in wanted], upstream)
        return outputs, dict(zip(wanted, found, strict=True))

    def second_gradients(self, name, inputs, options, wanted, upstream):
        inputs = self.leaves(inputs, wanted)
        tensors, outputs = [inputs[name] for name in wanted], self.call(name, inputs, options)
        dy = [upstream(y).requires_grad_() for y in outputs]
        first = self.torch.autograd.grad(outputs, tensors, dy, create_graph=True)
        return self.torch.autograd.grad(first, [*tensors, *dy], [*map(upstream, first)], materialize_grads=True)

    def traced(self, function):
        self.torch.compiler.reset()  # torch recompiles one piece of code, such as a test's function, only a few times
        return self.torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)


def import_tensorflow() -> Any:
    # TensorFlow is imported after torch: if its CUDA 12 is loaded before CUDA 13, torch's random numbers divide by zero
    # on a GPU, with or without fusedops.
    if installed("torch"):
        import torch

        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
    import tensorflow as tf

    return tf


class TensorFlow(Backend):
    framework = "tf"

    def __init__(self, device: str, number: int = 0) -> None:
        tf = import_tensorflow()

        self.tf = tf
        self.number = number  # device index
        # ValueError: while tracing. TypeError: Python-level checks.
        self.errors = (tf.errors.InvalidArgumentError, ValueError, TypeError)
        super().__init__(device)

    @staticmethod
    def gpus() -> int:
        tf = import_tensorflow()

        return len(tf.config.list_physical_devices("GPU"))

    @property
    def place(self) -> Any:
        return self.tf.device(f"/{'CPU' if self.device == 'cpu' else 'GPU'}:{self.number}")

    def from_numpy(self, array: np.ndarray) -> Any:
        with self.place:
            return self.tf.identity(self.tf.constant(array))

    def to_numpy(self, tensor: Any) -> np.ndarray:
        return tensor.numpy()

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return self.tf.reshape(tensor, shape)

    def is_tensor(self, value: Any) -> bool:
        return self.tf.is_tensor(value)

    def dtype_of(self, tensor: Any) -> str:
        return tensor.dtype.name

    def device_of(self, tensor: Any) -> str:
        return "cuda" if "GPU:" in tensor.device else "cpu"

    def call(self, name, inputs, options=None):
        with self.place:
            return super().call(name, inputs, options)

    def gradients(self, name, inputs, options, wanted, upstream=None):
        with self.tf.GradientTape() as tape:
            tape.watch([inputs[name] for name in wanted])
            outputs = self.call(name, inputs, options)
        upstream = upstream or self.upstream(outputs)
        found = tape.gradient(outputs, [inputs[name] for name in wanted], output_gradients=upstream)
        return outputs, dict(zip(wanted, found, strict=True))

    def second_gradients(self, name, inputs, options, wanted, upstream):
        tensors = [inputs[name] for name in wanted]
        with self.tf.GradientTape() as outer, self.place:
            with self.tf.GradientTape() as inner:
                inner.watch(tensors)
                outputs = self.call(name, inputs, options)
            dy = [*map(upstream, outputs)]
            outer.watch([*tensors, *dy])
            first = inner.gradient(outputs, tensors, dy)
        with self.place:
            return outer.gradient(first, [*tensors, *dy], [*map(upstream, first)], self.tf.UnconnectedGradients.ZERO)

    def traced(self, function):
        return self.tf.function(function)


class Jax(Backend):
    framework = "jax"

    def __init__(self, device: str) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)  # the suites also run in float64
        self.jax = jax
        (self.at, *_) = jax.devices("gpu" if device == "cuda" else device)
        # ValueError: from the core's inference. JaxRuntimeError: from a kernel.
        self.errors = (ValueError, TypeError, jax.errors.JaxRuntimeError)
        super().__init__(device)

    @staticmethod
    def gpus() -> int:
        import jax

        try:
            return len(jax.devices("gpu"))
        except RuntimeError:
            return 0

    @property
    def place(self) -> Any:
        return self.jax.default_device(self.at)

    def from_numpy(self, array: np.ndarray) -> Any:
        return self.jax.device_put(np.array(array, order="C"), self.at)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor)

    def reshape(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        return tensor.reshape(shape)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.jax.Array)

    def dtype_of(self, tensor: Any) -> str:
        return tensor.dtype.name

    def device_of(self, tensor: Any) -> str:
        (device,) = tensor.devices()
        return "cuda" if device.platform == "gpu" else device.platform

    def call(self, name, inputs, options=None):
        with self.place:
            return super().call(name, inputs, options)

    def gradients(self, name, inputs, options, wanted, upstream=None):
        outputs, pull_back = self._vjp(name, inputs, options, wanted)
        return outputs, dict(zip(wanted, pull_back(upstream or self.upstream(outputs)), strict=True))

    def second_gradients(self, name, inputs, options, wanted, upstream):
        tensors = [inputs[name] for name in wanted]
        dy = [*map(upstream, self.call(name, inputs, options))]

        def first(tensors, dy):
            _, pull_back = self._vjp(name, {**inputs, **dict(zip(wanted, tensors, strict=True))}, options, wanted)
            return pull_back(tuple(dy))

        found, pull_back = self.jax.vjp(first, tensors, dy)
        return [gradient for gradients in pull_back(tuple(map(upstream, found))) for gradient in gradients]

    def _vjp(self, name: str, inputs: Tensors, options: Any, wanted: tuple[str, ...]) -> Any:
        def function(*tensors: Any) -> tuple[Any, ...]:
            return self.call(name, {**inputs, **dict(zip(wanted, tensors, strict=True))}, options)

        return self.jax.vjp(function, *(inputs[name] for name in wanted))

    def traced(self, function):
        return self.jax.jit(function)


BACKENDS: dict[str, type[Backend]] = {"torch": Torch, "tf": TensorFlow, "jax": Jax}
_made: dict[tuple[str, str], Backend | str] = {}


def installed(framework: str) -> bool:
    return importlib.util.find_spec(PACKAGES[framework]) is not None


def backend(framework: str, device: str) -> Backend | str:
    """The backend, or the reason why there is none. A present binding that fails to import is an error."""
    key = (framework, device)
    if key not in _made:
        if not installed(framework):
            _made[key] = f"{PACKAGES[framework]} is not installed"
        elif device == "cuda" and not BACKENDS[framework].gpus():
            _made[key] = "none"
        else:
            _made[key] = BACKENDS[framework](device)
    return _made[key]
