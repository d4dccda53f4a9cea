"""The base of all layers, and tests that choose between the kernels and torch's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch

from fusedops.torch import distributed, internals
from fusedops.torch.library import DTYPES

FLOATING = frozenset(dtype for dtype in DTYPES if dtype.is_floating_point)
_HALF = frozenset(dtype for dtype in FLOATING if dtype.itemsize == 2)


_Forward = TypeVar("_Forward", covariant=True)


class _HasForward(Protocol[_Forward]):
    @property
    def forward(self) -> _Forward: ...


class FusedLayer(torch.nn.Module if TYPE_CHECKING else object):  # type: ignore[misc]
    """The first base of a layer; torch's class is the second.

    It has no state, so a change of the class converts a layer of torch.nn.

    Attributes:
        own_options: the names of options that torch's class lacks. `revert` leaves a layer with one of them as it is.
    """

    own_options: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # torch.nn.Module's takes and returns anything

        @property
        def __call__(self: _HasForward[_Forward]) -> _Forward: ...

    def why_not(self, *inputs: Any) -> str | None:
        """The reason why torch's own code computes this layer; None if the kernel does.

        Args:
            inputs: the arguments of a call; without them, tensors that the kernel supports are assumed.
        """
        return None

    def otherwise(self, original: Callable[..., Any], *inputs: Any) -> Any:
        """Calls the original. While torch.fx records, returns a node that calls this layer, which is a leaf."""
        if internals.is_symbol(inputs[0]):
            node = internals.node_of(self, inputs)
            if node is not None:
                return node
        return original(*inputs)


def as_original(error: RuntimeError, original: Callable[..., Any], *inputs: Any) -> Any:
    """Calls the original after our operator refused its inputs. Mostly it raises torch's familiar error."""
    # Other errors, such as out of memory or a missing kernel, pass.
    if torch.compiler.is_compiling() or not str(error).startswith("fusedops."):
        raise error
    return original(*inputs)


_is_compiling = torch.compiler.is_dynamo_compiling  # faster; torch.export has a dispatch mode
REFUSED = (RuntimeError, TypeError)  # raised by an operator for unsupported tensors


def is_plain(x: Any) -> bool:
    """True if x is a plain torch.Tensor on a supported device, in eager code without tracers or dispatch modes.

    A layer may then call the operator at once, and call `why_not` only after it raised one of REFUSED. On small tensors
    `why_not` takes as long as the operator.
    """
    if _is_compiling() or type(x) is not torch.Tensor or x.is_nested or not (x.is_cuda or x.is_cpu or x.is_meta):
        return False
    return internals.tracing_state() is None and internals.dispatch_modes() == 0


def are_alike(x: torch.Tensor, other: Any) -> bool:
    """True if `other` has the class, dtype and shape of a tensor that `is_plain`.

    An operator with dropout refuses inputs only after a seed is drawn, which would change later random numbers.
    """
    return type(other) is torch.Tensor and other.dtype is x.dtype and other.shape == x.shape


def have_equal_types(x: torch.Tensor, y: Any) -> bool:
    """True if y is a tensor of x's dtype and shape."""
    return isinstance(y, torch.Tensor) and x.dtype is y.dtype and internals.shape(x) == internals.shape(y)


def parameter(module: torch.nn.Module, name: str) -> Any:
    """An attribute that is mostly a parameter, faster than `getattr`. Not for compiled code."""
    parameters = module._parameters
    return parameters[name] if name in parameters else getattr(module, name)


def unfused_input(x: Any, what: str = "input") -> str | None:
    """The reason why the kernels do not support x, or None: they need dense floating-point tensors."""
    if not isinstance(x, torch.Tensor):
        if internals.is_symbol(x):
            return f"the {what} is a symbol of torch.fx"
        return f"the {what} is a {type(x).__name__}" if hasattr(x, "__torch_function__") else None
    if x.dtype not in FLOATING:
        return f"the {what} is {name(x.dtype)}"
    if x.layout is not torch.strided:
        return f"the {what} is {name(x.layout)}"
    if x.is_nested:
        return f"the {what} is nested"
    if internals.is_distributed(x) and not distributed.takes_dtensors():
        return f"the {what} is a DTensor"
    if x.is_cpu or x.is_cuda or x.is_meta:  # much faster than x.device.type
        return "ONNX has no such operator" if internals.is_exported_to_onnx() else None
    return f"the {what} is on {x.device.type}"


# Elements. In compiled code a smaller pass takes a GPU less time than the call of an operator takes the host, and the
# compiler fuses torch's pass with its neighbours.
_FEWEST_COMPILED = 2**22


def unfused_pass(x: Any) -> str | None:
    """As `unfused_input`, for a kernel that is a single pass over x, such as a norm."""
    return unfused_input(x) or left_to_compiler(x)


def left_to_compiler(x: Any) -> str | None:
    """The reason to leave a pass over x to the compiler, or None."""
    # Dynamo does not run in torch.export, except in strict mode: exported programs may run without the compiler.
    if not torch.compiler.is_dynamo_compiling() or not isinstance(x, torch.Tensor) or is_cast(x):
        return None
    if is_small_on_gpu(x, x.shape.numel(), _FEWEST_COMPILED):
        return "torch.compile makes one kernel of a pass over so few elements and what is around it"
    return None


def is_left_to_compiler(x: Any) -> bool:
    """True in compiled code that leaves passes over x to the compiler.

    A module may then run its original code at once: the compiled program guards all objects that its Python reads, so
    further tests would cost time in each call.
    """
    return _is_compiling() and left_to_compiler(x) is not None


def is_small_on_gpu(x: torch.Tensor, size: int, fewest: int) -> bool:
    """True if x is on a GPU and `size` is statically known to be below `fewest`.

    A dynamic size is not known: a guard on it would cause recompilations.
    """
    return x.is_cuda and _is_known(size < fewest)


def padded_by_compiler(logits: torch.Tensor, dim: int = -1) -> str | None:
    """The reason to leave the loss of logits with classes in this dimension to the compiler, or None.

    The compiler pads an odd number of classes in the logits and their gradient for the head's products.
    """
    if not torch.compiler.is_dynamo_compiling() or not logits.is_cuda or logits.dtype not in _HALF:
        return None
    odd = logits.dim() > 0 and _is_known(logits.shape[dim] % 8 != 0)
    return "torch.compile pads the rows of an odd number of classes" if odd else None


def _is_known(condition: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # a slow import, which the compiler needs

    return statically_known_true(condition)


def is_cast(x: torch.Tensor) -> bool:
    """True if autocast makes torch's norms, softmax and losses compute x in float32 and return float32."""
    return x.dtype in _HALF and torch.is_autocast_enabled(x.device.type)


def widened(x: torch.Tensor) -> torch.Tensor:
    """x in the kernels' compute dtype."""
    return x.float() if x.dtype in _HALF else x


def unfused_norm(x: torch.Tensor, weight: torch.Tensor | None) -> str | None:
    """The reason why torch's own code computes a norm of x with this weight; None if the kernel does."""
    if weight is None or weight.dtype is x.dtype:
        return left_to_compiler(x)
    # torch's own norms return another dtype for mixed dtypes, or refuse them.
    return None if is_mixed(x, weight) else mixed_dtypes(x, weight)


def is_mixed(x: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if x is 16-bit and the parameter is float32. The kernels accept this mix and return 16-bit results."""
    return x.dtype in _HALF and parameter.dtype is torch.float32


def mixed_dtypes(x: torch.Tensor, weight: torch.Tensor) -> str:
    return f"the weight is {name(weight.dtype)} beside an input of {name(x.dtype)}"


def name(value: torch.dtype | torch.layout) -> str:
    return str(value).removeprefix("torch.")


def options(module: torch.nn.Module, **defaults: Any) -> str:
    """The attributes that differ from these defaults, formatted for a repr."""
    given = ((key, getattr(module, key), default) for key, default in defaults.items())
    return ", ".join(f"{key}={value!r}" for key, value, default in given if value != default)


def joined(*parts: str) -> str:
    """The nonempty parts of a repr, joined."""
    return ", ".join(filter(None, parts))
