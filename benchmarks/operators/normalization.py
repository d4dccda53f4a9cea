"""rms_norm and layer_norm, alone and of a sum."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.operators.record import Function, Input, Operator, of_a_row, whole

EPS_RMS, EPS_LAYER = 1e-6, 1e-5
WEIGHT, BIAS = Input("weight", of_a_row, parameter=True), Input("bias", of_a_row, parameter=True)
# As expressions in h and in d = h - mean(h).
NORMED_RMS = f"h * rsqrt(mean(h * h) + {EPS_RMS}) * weight"
NORMED_LAYER = f"d * rsqrt(mean(d * d) + {EPS_LAYER}) * weight + bias"
TF_SPEEDS = {"XLA": 2.0, "eager": 5.0}


def plain_rms_norm(n: Any) -> Function:
    def rms_norm(x: Any, weight: Any) -> Any:
        h = n.upcast(x)
        return n.like(h * n.rsqrt(n.mean(h * h) + EPS_RMS) * n.upcast(weight), x)

    return rms_norm


def layer_norm(n: Any) -> Function:
    def of_row(x: Any, weight: Any, bias: Any) -> Any:
        h = n.upcast(x)
        h = h - n.mean(h)
        return n.like(h * n.rsqrt(n.mean(h * h) + EPS_LAYER) * n.upcast(weight) + n.upcast(bias), x)

    return of_row


def of_sum(norm: Function) -> Function:
    def add_norm(x: Any, residual: Any, *parameters: Any) -> Any:
        total = x + residual
        return norm(total, *parameters), total

    return add_norm


def torch_rms_norm(torch: Any) -> Function:
    rms_norm = torch.nn.functional.rms_norm
    return lambda x, weight: rms_norm(x, x.shape[-1:], weight, EPS_RMS)


def _torch_layer_norm(torch: Any) -> Function:
    layer_norm = torch.nn.functional.layer_norm
    return lambda x, weight, bias: layer_norm(x, x.shape[-1:], weight, bias, EPS_LAYER)


def _quack_layer_norm(quack: Any) -> Function:
    import torch

    norms = import_module("quack.rmsnorm")

    class LayerNorm(torch.autograd.Function):
        """QuACK has both directions, but no autograd function for them."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            out, rstd, mean = norms.layernorm_fwd(x, weight, bias, EPS_LAYER, return_rstd=True, return_mean=True)
            ctx.save_for_backward(x, weight, rstd, mean)
            return out

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x, weight, rstd, mean = ctx.saved_tensors
            return norms.layernorm_bwd(x, weight, dy, rstd, mean)

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            return LayerNorm.apply(x, weight, bias)
        return norms.layernorm_fwd(x, weight, bias, EPS_LAYER)

    return layer_norm


# Both upstream gradients and the sum are read; the gradients of both summands are one tensor.
OF_SUM: dict[str, Any] = {"moves": (4, 4), "outputs": {"out": whole, "sum": whole}, "sums": True}

OPERATORS = (
    Operator(
        "rms_norm",
        inputs=(Input("x"), WEIGHT),
        moves=(2, 3),
        operations=(4, 9),
        formula=plain_rms_norm,
        expression=f"h = x; {NORMED_RMS}",
        torch=torch_rms_norm,
        liger=lambda ops: lambda x, weight: ops.LigerRMSNormFunction.apply(x, weight, EPS_RMS, 0.0, "llama", False),
        quack=lambda quack: lambda x, weight: quack.rmsnorm(x, weight, eps=EPS_RMS),
        keras=("RMSNormalization", EPS_RMS),
        floors=(1.05, 1.12),
        tf_speeds=TF_SPEEDS,
        tf_calls=True,
    ),
    Operator(
        "layer_norm",
        inputs=(Input("x"), WEIGHT, BIAS),
        moves=(2, 3),
        operations=(7, 13),
        formula=layer_norm,
        expression=f"d = x - mean(x); {NORMED_LAYER}",
        torch=_torch_layer_norm,
        liger=lambda ops: lambda x, weight, bias: ops.LigerLayerNormFunction.apply(x, weight, bias, EPS_LAYER),
        quack=_quack_layer_norm,
        quack_parameters="float32",
        keras=("LayerNormalization", EPS_LAYER),
        floors=(1.05, 1.15),
        tf_speeds=TF_SPEEDS,
        tf_calls=True,
    ),
    Operator(
        "add_rms_norm",
        inputs=(Input("x"), Input("residual"), WEIGHT),
        operations=(5, 10),
        formula=lambda n: of_sum(plain_rms_norm(n)),
        expression=f"h = x + residual; return {NORMED_RMS}, h",
        torch=lambda torch: of_sum(torch_rms_norm(torch)),
        liger=lambda ops: (
            lambda x, residual, weight: ops.LigerFusedAddRMSNormFunction.apply(
                x, residual, weight, EPS_RMS, 0.0, "llama", False
            )
        ),
        quack=lambda quack: (
            lambda x, residual, weight: quack.rmsnorm(x, weight, residual=residual, eps=EPS_RMS, prenorm=True)
        ),
        floors=(1.04, 0.0),
        tf_speeds=TF_SPEEDS,
        **OF_SUM,
    ),
    Operator(
        "add_layer_norm",
        inputs=(Input("x"), Input("residual"), WEIGHT, BIAS),
        operations=(8, 14),
        formula=lambda n: of_sum(layer_norm(n)),
        expression=f"h = x + residual; d = h - mean(h); return {NORMED_LAYER}, h",
        torch=lambda torch: of_sum(_torch_layer_norm(torch)),
        tf_speeds=TF_SPEEDS,
        **OF_SUM,
    ),
)
