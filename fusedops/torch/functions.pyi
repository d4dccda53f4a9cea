# Written by `make stubs`, from fusedops/functions/: the functions of fusedops.torch.
from collections.abc import Sequence
from types import SimpleNamespace

from torch import Tensor

from fusedops.functions.common import Activation, Approximation, Reduction

__all__ = [
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "axpby",
    "bias_act",
    "cross_entropy",
    "gated_act",
    "geglu",
    "layer_norm",
    "matmul",
    "polynomial_activation",
    "reglu",
    "relu",
    "rms_norm",
    "rope",
    "scale",
    "softmax",
    "swiglu",
]
ops: SimpleNamespace

def add(x: Tensor, y: Tensor) -> Tensor: ...
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-05
) -> tuple[Tensor, Tensor]: ...
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, eps: float = 1e-06, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]: ...
def axpby(a: float | Tensor, x: Tensor, b: Tensor) -> Tensor: ...
def bias_act(x: Tensor, bias: Tensor | None = None, activation: Activation = "gelu") -> Tensor: ...
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor: ...
def gated_act(gate: Tensor, up: Tensor | None = None, activation: Activation = "silu") -> Tensor: ...
def geglu(gate: Tensor, up: Tensor | None = None, *, approximate: Approximation = "none") -> Tensor: ...
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-05
) -> Tensor: ...
def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor: ...
def polynomial_activation(x: Tensor, coefficients: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor: ...
def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor: ...
def relu(x: Tensor) -> Tensor: ...
def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-06, weight_offset: float = 0.0) -> Tensor: ...
def rope(x: Tensor, cos: Tensor, sin: Tensor, *, seq_dim: int = -3, interleaved: bool = False) -> Tensor: ...
def scale(x: Tensor, factor: float | Tensor) -> Tensor: ...
def softmax(x: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, causal: bool = False) -> Tensor: ...
def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor: ...
