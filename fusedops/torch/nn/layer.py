"""What the layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
    """Comes before torch's class among the bases of a layer.

    It has no state of its own, so a layer of torch.nn's becomes one of these by a change of its class alone.
    """

    if TYPE_CHECKING:  # torch.nn.Module's takes and returns anything

        @property
        def __call__(self: _HasForward[_Forward]) -> _Forward: ...

    def why_not(self, *inputs: Any) -> str | None:
        """Why torch's own code computes this layer as it is configured; None if the kernel does.

        Args:
            inputs: what the layer is to be called with; without them, the answer is for tensors that the kernel takes.
        """
        return None

    def otherwise(self, original: Callable[..., Any], *inputs: Any) -> Any:
        """The original's result, where the kernel does not compute it.

        While torch.fx records a model, a node that calls this layer: it is a leaf, as torch.nn's own layers are.
        """
        if internals.is_symbol(inputs[0]):
            node = internals.node_of(self, inputs)
            if node is not None:
                return node
        return original(*inputs)


def as_original(error: RuntimeError, original: Callable[..., Any], *inputs: Any) -> Any:
    """Calls the original after our operator has failed: mostly it raises an error of its own, which its users know."""
    if torch.compiler.is_compiling() or not str(error).startswith(
        "fusedops."
    ):  # such as out of memory, or a missing kernel
        raise error
    return original(*inputs)


_is_compiling = torch.compiler.is_compiling
REFUSED = (RuntimeError, TypeError)
"""What an operator raises for tensors that it does not take."""


def is_plain(x: Any) -> bool:
    """Whether x is a tensor of torch's own class where kernels are, in code that runs and that nobody records.

    A layer may then call the operator at once, which refuses what `why_not` would name, and ask when it has: on small
    tensors the question takes as long as the operator.
    """
    if _is_compiling() or type(x) is not torch.Tensor or x.is_nested or not (x.is_cuda or x.is_cpu or x.is_meta):
        return False
    return internals.tracing_state() is None and internals.dispatch_modes() == 0


def are_alike(x: torch.Tensor, other: Any) -> bool:
    """Whether a tensor has the class, dtype and shape of one that `is_plain`.

    An operator with dropout would refuse another one only after a seed was drawn, and what is drawn next would change.
    """
    return type(other) is torch.Tensor and other.dtype is x.dtype and other.shape == x.shape


def parameter(module: torch.nn.Module, name: str) -> Any:
    """An attribute that mostly is a parameter: torch itself finds one only after it has looked everywhere else.

    Not for code that is compiled, which has its own ways to find it.
    """
    parameters = module._parameters
    return parameters[name] if name in parameters else getattr(module, name)


def unfused_input(x: Any, what: str = "input") -> str | None:
    """Why the kernel does not take x, if so: it takes dense floating-point tensors. The operator refuses the rest."""
    if not isinstance(x, torch.Tensor):
        return f"the {what} is a symbol of torch.fx" if internals.is_symbol(x) else None
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


# Elements: a pass over fewer takes a GPU less time than a call of an operator takes compiled code on the host, in which
# the compiler calls one kernel of its own for torch's pass and what is around it.
_FEWEST_COMPILED = 2**22


def unfused_pass(x: Any) -> str | None:
    """As `unfused_input`, for a kernel that is one pass over x, such as a norm: not a product, attention or a loss."""
    return unfused_input(x) or left_to_compiler(x)


def left_to_compiler(x: Any) -> str | None:
    """Why a pass over x that the kernel takes is torch's own code, if so."""
    # Not while torch.export records, but in its strict mode: its program may run without the compiler.
    if not torch.compiler.is_dynamo_compiling() or not isinstance(x, torch.Tensor) or is_cast(x):
        return None
    if is_small_on_gpu(x, x.shape.numel(), _FEWEST_COMPILED):
        return "torch.compile makes one kernel of a pass over so few elements and what is around it"
    return None


def is_small_on_gpu(x: torch.Tensor, size: int, fewest: int) -> bool:
    """Whether code that is compiled is for a GPU, with a `size`, of the work on x, that is known to be below `fewest`.

    One that varies is not known: to ask for it would have the code compiled again for others.
    """
    return x.is_cuda and _is_known(size < fewest)


def padded_by_compiler(logits: torch.Tensor, dim: int = -1) -> str | None:
    """Why a loss of logits that the kernel takes, with its classes in this dimension, is torch's own code, if so.

    The compiler pads the rows of such logits, and of their gradient, for the products of the head, which it also has.
    """
    if not torch.compiler.is_dynamo_compiling() or not logits.is_cuda or logits.dtype not in _HALF:
        return None
    odd = logits.dim() > 0 and _is_known(logits.shape[dim] % 8 != 0)
    return "torch.compile pads the rows of an odd number of classes" if odd else None


def _is_known(condition: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # which takes long, but for the compiler

    return statically_known_true(condition)


def is_cast(x: torch.Tensor) -> bool:
    """Whether torch's norms, softmax and losses would compute x in another dtype, and return that: under autocast."""
    return x.dtype in _HALF and torch.is_autocast_enabled(x.device.type)


def widened(x: torch.Tensor) -> torch.Tensor:
    """x in the dtype in which the kernels compute."""
    return x.float() if x.dtype in _HALF else x


def unfused_norm(x: torch.Tensor, weight: torch.Tensor | None) -> str | None:
    """Why torch's own code computes a norm of x, which the kernel takes, with this weight; None if the kernel does."""
    if weight is None or weight.dtype is x.dtype:
        return left_to_compiler(x)
    # torch's own norms return another dtype for two, or refuse them.
    return None if is_mixed(x, weight) else of_two_dtypes(x, weight)


def is_mixed(x: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether x has 16 bits and the parameter is float32: the kernels accept this and return 16 bits."""
    return x.dtype in _HALF and parameter.dtype is torch.float32


def of_two_dtypes(x: torch.Tensor, weight: torch.Tensor) -> str:
    return f"the weight is {name(weight.dtype)} beside an input of {name(x.dtype)}"


def name(value: torch.dtype | torch.layout) -> str:
    return str(value).removeprefix("torch.")


def options(module: torch.nn.Module, **defaults: Any) -> str:
    """The attributes that differ from these defaults, as arguments in a repr."""
    given = ((key, getattr(module, key), default) for key, default in defaults.items())
    return ", ".join(f"{key}={value!r}" for key, value, default in given if value != default)


def joined(*parts: str) -> str:
    """The parts of a repr that are not empty."""
    return ", ".join(filter(None, parts))
