"""The types of the operators; `make operators` writes them, from the table of the compiled library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Tensor = Any


class Operators(Protocol):
    """The functions that fusedops/torch/operators.py and fusedops/tf/operators.py make of the table, one for each row.

    A call runs the function that fusedops/torch/calls.py or fusedops/tf/calls.py generates from the row; then `call` in
    torch_binding/call.cpp, below torch_autograd/kernel.cpp, or tf_binding/kernel.cc; then the row's rule and its `.cpu`
    or `.cuda`, which core_cuda/ops/<family>/<operator>.cpp names. docs/architecture.md draws it.
    """

    def accumulate_matmul(
        self, total: Tensor, a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> None: ...
    def add(self, x: Tensor, y: Tensor) -> Tensor: ...
    def add_layer_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        seed: Tensor | None,
        *,
        eps: float = 1e-05,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        seed: Tensor | None,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def add_rms_norm_float8(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        scale: Tensor | None,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        scaling: str = "row",
        dtype: str = "float8_e4m3fn",
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def adamw(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        steps: Sequence[Tensor],
        masters: Sequence[Tensor],
        lr: float | Tensor,
        step: Tensor | None,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
        clip: Tensor | None,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        decoupled: bool = True,
        epsilon_hat: bool = False,
        maximize: bool = False,
    ) -> None: ...
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        lengths: Tensor | None,
        seed: Tensor | None,
        *,
        causal: bool = False,
        scale: Sequence[float] = (),
        window: int = 0,
        softcap: float = 0.0,
        seq_dim: int = -3,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor]: ...
    def attention_backward(
        self,
        dy: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        y: Tensor,
        lse: Tensor,
        mask: Tensor | None,
        lengths: Tensor | None,
        seed: Tensor | None,
        *,
        causal: bool = False,
        scale: Sequence[float] = (),
        window: int = 0,
        softcap: float = 0.0,
        seq_dim: int = -3,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def attention_varlen(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets_q: Tensor,
        offsets_k: Tensor,
        *,
        causal: bool = False,
        scale: Sequence[float] = (),
        window: int = 0,
        softcap: float = 0.0,
    ) -> tuple[Tensor, Tensor]: ...
    def attention_varlen_backward(
        self,
        dy: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        y: Tensor,
        lse: Tensor,
        offsets_q: Tensor,
        offsets_k: Tensor,
        *,
        causal: bool = False,
        scale: Sequence[float] = (),
        window: int = 0,
        softcap: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def axpby(self, a: float | Tensor, x: Tensor, b: Tensor) -> Tensor: ...
    def axpby_backward(
        self, dy: Tensor, a: float | Tensor, x: Tensor, *, need_dx: bool = True
    ) -> tuple[Tensor, Tensor]: ...
    def bias_act(self, x: Tensor, bias: Tensor | None, *, activation: str = "gelu") -> Tensor: ...
    def bias_act_backward(
        self,
        dy: Tensor,
        x: Tensor,
        bias: Tensor | None,
        *,
        activation: str = "gelu",
        need_dx: bool = True,
        need_dbias: bool = True,
    ) -> tuple[Tensor, Tensor]: ...
    def bias_act_float8(
        self,
        x: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        *,
        activation: str = "gelu",
        scaling: str = "row",
        dtype: str = "float8_e4m3fn",
    ) -> tuple[Tensor, Tensor]: ...
    def cross_entropy(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def cross_entropy_backward(
        self,
        dloss: Tensor,
        logits: Tensor,
        labels: Tensor,
        lse: Tensor,
        count: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Tensor: ...
    def dropout(self, x: Tensor, seed: Tensor, *, rate: float = 0.5) -> Tensor: ...
    def dropout_add(self, x: Tensor, residual: Tensor, seed: Tensor, *, rate: float = 0.5) -> Tensor: ...
    def gated_act(self, gate: Tensor, up: Tensor | None, *, activation: str = "silu") -> Tensor: ...
    def gated_act_backward(
        self,
        dy: Tensor,
        gate: Tensor,
        up: Tensor | None,
        *,
        activation: str = "silu",
        need_dgate: bool = True,
        need_dup: bool = True,
    ) -> tuple[Tensor, Tensor]: ...
    def gated_act_float8(
        self,
        gate: Tensor,
        up: Tensor | None,
        scale: Tensor | None,
        *,
        activation: str = "silu",
        scaling: str = "row",
        dtype: str = "float8_e4m3fn",
    ) -> tuple[Tensor, Tensor]: ...
    def gated_linear(
        self,
        x: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        gate_bias: Tensor | None,
        up_bias: Tensor | None,
        *,
        activation: str = "silu",
        transpose_weight: bool = True,
        keep: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def gated_linear_backward(
        self,
        dy: Tensor,
        x: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        gate_bias: Tensor | None,
        up_bias: Tensor | None,
        gate: Tensor | None,
        up: Tensor | None,
        *,
        activation: str = "silu",
        transpose_weight: bool = True,
        need_dx: bool = True,
        need_dgate_weight: bool = True,
        need_dup_weight: bool = True,
        need_dgate_bias: bool = True,
        need_dup_bias: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
    def global_norm(self, tensors: Sequence[Tensor]) -> Tensor: ...
    def layer_norm(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float = 1e-05
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def layer_norm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        ds: Tensor | None,
        seed: Tensor | None,
        *,
        need_dx: bool = True,
        need_dweight: bool = True,
        need_dbias: bool = True,
        dropout: float = 0.0,
        need_dropped_dx: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def layer_norm_float8(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        scale: Tensor | None,
        *,
        eps: float = 1e-05,
        scaling: str = "row",
        dtype: str = "float8_e4m3fn",
    ) -> tuple[Tensor, Tensor]: ...
    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str = "identity",
        transpose_weight: bool = True,
        keep: bool = True,
    ) -> tuple[Tensor, Tensor]: ...
    def linear_backward(
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        z: Tensor | None,
        *,
        activation: str = "identity",
        transpose_weight: bool = True,
        need_dx: bool = True,
        need_dweight: bool = True,
        need_dbias: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def linear_cross_entropy(
        self,
        x: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float = 0.0,
        transpose_weight: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def linear_cross_entropy_backward(
        self,
        dloss: Tensor,
        x: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None,
        lse: Tensor,
        count: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float = 0.0,
        transpose_weight: bool = True,
        need_dx: bool = True,
        need_dweight: bool = True,
        need_dbias: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def matmul(self, a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor: ...
    def matmul_backward(
        self,
        dc: Tensor,
        a: Tensor | None,
        b: Tensor,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        need_da: bool = True,
        need_db: bool = True,
    ) -> tuple[Tensor, Tensor]: ...
    def polynomial_activation(self, x: Tensor, *, coefficients: Sequence[float] = (1.0, 1.0, 1.0)) -> Tensor: ...
    def polynomial_activation_backward(
        self, dy: Tensor, x: Tensor, *, coefficients: Sequence[float] = (1.0, 1.0, 1.0)
    ) -> Tensor: ...
    def relu(self, x: Tensor) -> Tensor: ...
    def relu_backward(self, dy: Tensor, y: Tensor) -> Tensor: ...
    def rms_norm(
        self, x: Tensor, weight: Tensor | None, *, eps: float = 1e-06, weight_offset: float = 0.0
    ) -> tuple[Tensor, Tensor]: ...
    def rms_norm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        rstd: Tensor,
        ds: Tensor | None,
        seed: Tensor | None,
        *,
        weight_offset: float = 0.0,
        need_dx: bool = True,
        need_dweight: bool = True,
        dropout: float = 0.0,
        need_dropped_dx: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def rms_norm_float8(
        self,
        x: Tensor,
        weight: Tensor | None,
        scale: Tensor | None,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        scaling: str = "row",
        dtype: str = "float8_e4m3fn",
    ) -> tuple[Tensor, Tensor]: ...
    def rope(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        seq_dim: int = -3,
        interleaved: bool = False,
        inverse: bool = False,
    ) -> Tensor: ...
    def scale(self, x: Tensor, factor: float | Tensor) -> Tensor: ...
    def sgd(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        momentums: Sequence[Tensor],
        lr: float | Tensor,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
        clip: Tensor | None,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        nesterov: bool = False,
        maximize: bool = False,
        first: bool = False,
        velocity: bool = False,
    ) -> None: ...
    def softmax(self, x: Tensor, mask: Tensor | None, *, scale: float = 1.0, causal: bool = False) -> Tensor: ...
    def softmax_backward(self, dy: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor: ...
