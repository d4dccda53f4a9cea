"""The public functions of fusedops.torch; `make stubs` writes them, from fusedops/functions/."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fusedops.functions.common import Activation, Approximation, Reduction
from fusedops.torch.errors import renamed
from fusedops.torch.operators import OPERATORS as ops

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


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        y: x's shape and dtype; there is no broadcasting.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
    """
    return ops.add(x, y)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-05
) -> tuple[Tensor, Tensor]:
    """(layer_norm(s), s) with s = x + residual, in one pass.

    s is rounded to x's dtype first and then normalized, as if both steps were separate operators.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        residual: x's shape and dtype.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None: nothing is added.
        eps: added to the variance; used in the compute dtype.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    y, s, _, _ = ops.add_layer_norm(x, residual, weight, bias, eps=eps)
    return y, s


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, eps: float = 1e-06, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) with s = x + residual, in one pass.

    s is rounded to x's dtype first and then normalized, as if both steps were separate operators.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        residual: x's shape and dtype.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        eps: added to the mean of squares; used in the compute dtype.
        weight_offset: added to the weight in the compute dtype; without a weight it is not used.

    Returns:
        The normalized sum, and the sum itself for the next residual connection: two tensors of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    y, s, _ = ops.add_rms_norm(x, residual, weight, eps=eps, weight_offset=weight_offset)
    return y, s


def axpby(a: float | Tensor, x: Tensor, b: Tensor) -> Tensor:
    """a·x + b, in one pass.

    The gradients of `a` and `x` come from one pass over the upstream gradient and x; b's is the upstream gradient.

    Args:
        a: a number, used unrounded in the compute dtype; or a tensor of one element, of x's dtype or float32.
        x: float64, float32, float16 or bfloat16, of any shape.
        b: x's shape and dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: BLAS's axpy, with a second vector instead of an update in place.
    """
    return ops.axpby(a, x, b)


def bias_act(x: Tensor, bias: Tensor | None = None, activation: Activation = "gelu") -> Tensor:
    """act(x + bias).

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        bias: [D] for x of shape [..., D]; of x's dtype, or float32 beside a 16-bit x.
        activation: `identity`, `relu`, `gelu` (exact, by erf), `gelu_tanh` (its approximation by tanh), `silu`,
            `sigmoid` or `tanh`.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. Infinities give what
        the formula gives: `gelu`, `gelu_tanh` and `silu` are -inf · 0 = NaN at -inf.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
        ValueError: `activation` is none of these.

    Sources: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016; Elfwing, Uchibe and Doya,
        "Sigmoid-weighted linear units for neural network function approximation in reinforcement learning", 2017.
    """
    return ops.bias_act(x, bias, activation=activation)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log softmax(logits)[label], over the last dimension.

    The logits are read once and no probabilities are stored, but for second derivatives. With label smoothing s, the
    loss of a row is (1 - s) times this, plus s times its mean over all classes as labels.

    Args:
        logits: float64, float32, float16 or bfloat16, [..., classes].
        labels: int32 or int64, [...]: for each row a class in [0, classes), or ignore_index.
        ignore_index: a row with this label has no loss and a gradient of zeros, and does not count in the mean.
        label_smoothing: in [0, 1].
        reduction: "mean" over the rows that are not ignored, NaN if all are; "sum"; or "none", a loss for each row.

    Returns:
        The loss in float64 for float64 logits, else in float32: of the labels' shape for "none", otherwise a scalar.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape, a dtype or `label_smoothing`
            is not as above, or, on a CPU, a label. On a GPU a label that is neither a class nor ignore_index makes its
            loss and its gradient NaN.
        ValueError: `reduction` is none of these.

    Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, for label smoothing.
    """
    loss, _, _ = ops.cross_entropy(
        logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss


def gated_act(gate: Tensor, up: Tensor | None = None, activation: Activation = "silu") -> Tensor:
    """act(gate) · up.

    Rows that are spaced apart, such as the halves of a larger tensor, are read where they lie.

    Args:
        gate: float64, float32, float16 or bfloat16, of any shape. Without `up` it is packed, [..., 2D]: the first
            half of the last dimension is the gate, the second half is `up`; so is its gradient.
        up: gate's shape and dtype.
        activation: as in `bias_act`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype. 16-bit inputs are computed in float32
        and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
        ValueError: `activation` is none of these.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    return ops.gated_act(gate, up, activation=activation)


def geglu(gate: Tensor, up: Tensor | None = None, *, approximate: Approximation = "none") -> Tensor:
    """gelu(gate) · up: `gated_act` with `gelu` or `gelu_tanh`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.
        approximate: "none" for `gelu`, "tanh" for `gelu_tanh`.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
        ValueError: `approximate` is neither.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"fusedops.geglu: approximate must be 'none' or 'tanh'; got {approximate!r}")
    try:
        return ops.gated_act(gate, up, activation="gelu_tanh" if approximate == "tanh" else "gelu")
    except Exception as error:
        raise renamed(error, "gated_act", "geglu") from None


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-05) -> Tensor:
    """(x − mean(x)) · rsqrt(var(x) + eps) · weight + bias, over the last dimension.

    The variance is the biased one, computed from the deviations from the mean: it loses nothing to cancellation where
    the mean is large. A row's result does not depend on the other rows. All gradients come from one pass.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        bias: [columns], of x's dtype, or float32 beside a 16-bit x; None: nothing is added.
        eps: added to the variance; used in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    y, _, _ = ops.layer_norm(x, weight, bias, eps=eps)
    return y


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """a @ b, with either matrix transposed on the way.

    Transposed matrices, and rows that are spaced apart, are read where they lie: nothing is copied.

    Args:
        a: [..., M, K], or [..., K, M] with `transpose_a`; float64, float32, float16 or bfloat16.
        b: [..., K, N], or [..., N, K] with `transpose_b`; a's dtype; its leading dimensions are a's, or none.
        transpose_a: whether a's last two dimensions are exchanged.
        transpose_b: whether b's last two dimensions are exchanged.

    Returns:
        [..., M, N], of a's dtype. 16-bit inputs are summed in float32 over all of K and rounded once; float32 is
        computed in float32, without TF32. Under PyTorch's autocast both inputs are cast to its dtype first.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
    """
    return ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def polynomial_activation(x: Tensor, coefficients: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor:
    """c₀ + c₁·x + c₂·x² + ..., by Horner's rule.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        coefficients: 1 to 8 numbers, from the constant term up; used unrounded in the compute dtype.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): the dtype or the number of coefficients
            is not as above.

    Source: Horner, "A new method of solving numerical equations of all orders, by continuous approximation", 1819.
    """
    return ops.polynomial_activation(x, coefficients=coefficients)


def reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """relu(gate) · up: `gated_act` with `relu`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    try:
        return ops.gated_act(gate, up, activation="relu")
    except Exception as error:
        raise renamed(error, "gated_act", "reglu") from None


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    The gradient at 0 is 0. A NaN stays NaN and lets its gradient pass.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): the dtype is not as above.

    Source: Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", 2010.
    """
    return ops.relu(x)


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-06, weight_offset: float = 0.0) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · (weight + weight_offset), over the last dimension.

    A row's result does not depend on the other rows. The gradients of x and weight come from one pass.

    Args:
        x: [..., columns], float64, float32, float16 or bfloat16. Rows may be spaced apart: they are read in place.
        weight: [columns], of x's dtype, or float32 beside a 16-bit x; None stands for a factor of 1.
        eps: added to the mean of squares; used in the compute dtype.
        weight_offset: added to the weight in the compute dtype; 1 for weights that are stored as the difference from 1,
            as Gemma's are. Without a weight it is not used.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    y, _ = ops.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
    return y


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, seq_dim: int = -3, interleaved: bool = False) -> Tensor:
    """Rotary embedding: each pair of features (x₁, x₂) becomes (x₁·cos − x₂·sin, x₂·cos + x₁·sin).

    Slices of a packed tensor and transposed heads are read where they lie: nothing is copied.

    Args:
        x: [..., T, H, D], T positions of H heads of D features; with `seq_dim=-2` [..., T, D], such as [B, H, T, D].
            float64, float32, float16 or bfloat16.
        cos: [T, R/2] or [B, T, R/2], B being x's first dimension, with R ≤ D; features from R on pass unchanged. Of x's
            dtype, or float32 beside a 16-bit x.
        sin: cos's shape and dtype.
        seq_dim: where x has its positions, -3 or -2.
        interleaved: whether pair i is features 2i and 2i + 1, as in GPT-J, instead of i and i + R/2, as in GPT-NeoX.

    Returns:
        A tensor of x's shape and dtype, differentiable in x. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.
    """
    return ops.rope(x, cos, sin, seq_dim=seq_dim, interleaved=interleaved)


def scale(x: Tensor, factor: float | Tensor) -> Tensor:
    """x · factor.

    Args:
        x: float64, float32, float16 or bfloat16, of any shape.
        factor: a number, used unrounded in the compute dtype; or a tensor of one element, of x's dtype or float32.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.
    """
    return ops.scale(x, factor)


def softmax(x: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """exp(scale·x) / Σ exp(scale·x), over the last dimension, of what is not masked.

    A masked element counts as not there, whatever its value; its share and its gradient are zero. A row of which
    nothing is left is all zeros. What causality masks is not even read.

    Args:
        x: float64, float32, float16 or bfloat16, [..., columns].
        scale: a number, used unrounded until it meets x in the compute dtype.
        mask: bool, of x's shape or broadcastable to it; True keeps an element.
        causal: keeps column j of row i where j ≤ i + columns - rows, on the last two dimensions: the last row sees all
            columns. x then has at least two dimensions. Together with a mask, both must keep an element.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once. A row's bits do not
        depend on the other rows.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.
    """
    return ops.softmax(x, mask, scale=scale, causal=causal)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """silu(gate) · up: `gated_act` with `silu`.

    Args:
        gate: as in `gated_act`; without `up` packed, [..., 2D].
        up: gate's shape and dtype.

    Returns:
        A tensor of gate's shape, or [..., D] if it is packed, and of its dtype.

    Raises:
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow): a shape or dtype is not as above.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """
    try:
        return ops.gated_act(gate, up, activation="silu")
    except Exception as error:
        raise renamed(error, "gated_act", "swiglu") from None
