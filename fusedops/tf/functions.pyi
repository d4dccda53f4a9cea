# Written by `make stubs`, from fusedops/functions/: the functions of fusedops.tf.
from collections.abc import Sequence
from types import SimpleNamespace

from fusedops.functions.common import Activation, Approximation, Reduction
from fusedops.tf.tensors import Tensor, TensorLike

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

def add(x: TensorLike, y: TensorLike, *, name: str | None = None) -> Tensor: ...
def add_layer_norm(
    x: TensorLike,
    residual: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-05,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def add_rms_norm(
    x: TensorLike,
    residual: TensorLike,
    weight: TensorLike | None = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
def axpby(a: float | TensorLike, x: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor: ...
def bias_act(
    x: TensorLike, bias: TensorLike | None = None, activation: Activation = "gelu", *, name: str | None = None
) -> Tensor: ...
def cross_entropy(
    logits: TensorLike,
    labels: TensorLike,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Tensor: ...
def gated_act(
    gate: TensorLike, up: TensorLike | None = None, activation: Activation = "silu", *, name: str | None = None
) -> Tensor: ...
def geglu(
    gate: TensorLike, up: TensorLike | None = None, *, approximate: Approximation = "none", name: str | None = None
) -> Tensor: ...
def layer_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    eps: float = 1e-05,
    name: str | None = None,
) -> Tensor: ...
def matmul(
    a: TensorLike, b: TensorLike, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None
) -> Tensor: ...
def polynomial_activation(
    x: TensorLike, coefficients: Sequence[float] = (1.0, 1.0, 1.0), *, name: str | None = None
) -> Tensor: ...
def reglu(gate: TensorLike, up: TensorLike | None = None, *, name: str | None = None) -> Tensor: ...
def relu(x: TensorLike, *, name: str | None = None) -> Tensor: ...
def rms_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    name: str | None = None,
) -> Tensor: ...
def rope(
    x: TensorLike,
    cos: TensorLike,
    sin: TensorLike,
    *,
    seq_dim: int = -3,
    interleaved: bool = False,
    name: str | None = None,
) -> Tensor: ...
def scale(x: TensorLike, factor: float | TensorLike, *, name: str | None = None) -> Tensor: ...
def softmax(
    x: TensorLike, *, scale: float = 1.0, mask: TensorLike | None = None, causal: bool = False, name: str | None = None
) -> Tensor: ...
def swiglu(gate: TensorLike, up: TensorLike | None = None, *, name: str | None = None) -> Tensor: ...
