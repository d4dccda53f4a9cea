"""Libraries of fused kernels for PyTorch that fusedops is compared with, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from benchmarks.operators.layouts import Function

FUNCTIONS: dict[str, dict[str, Function]] = {}  # library -> operator -> of the inputs in the public order


def load() -> list[str]:
    """Fills FUNCTIONS, which takes seconds; returns what is missing, in sentences."""
    missing = []
    major, minor = torch.cuda.get_device_capability()
    for name, package, least, functions in LIBRARIES:
        if importlib.util.find_spec(package) is None:
            missing.append(f"{name} is not compared: it is not installed (pip install 'fusedops[bench]')")
        elif major < least:
            missing.append(
                f"{name} is not compared: it needs compute capability {least}.0, this GPU has {major}.{minor}"
            )
        else:
            try:
                FUNCTIONS[name] = functions()
            except Exception as error:  # a library that is there may still not fit this torch
                missing.append(f"{name} is not compared: {type(error).__name__}: {error}".splitlines()[0])
    return missing


def arguments(library: str, operator: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs as the library wants them."""
    if library == "Liger":  # writes gradients, and rotated features, over its inputs
        return {name: value.clone() for name, value in values.items()}
    if operator == "layer_norm":  # QuACK's takes parameters in float32 only
        return {name: value.float() if name in ("weight", "bias") else value for name, value in values.items()}
    return dict(values)


def _liger() -> dict[str, Function]:
    ops = import_module("liger_kernel.ops")

    def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        # It rotates queries and keys in place: here, one half of the batch each, so that both are contiguous.
        if x.requires_grad:
            raise NotImplementedError("rotates in place")
        half = x.shape[0] // 2
        queries, keys = x[:half].transpose(1, 2), x[half:].transpose(1, 2)
        ops.LigerRopeFunction.apply(queries, keys, cos, sin, None, 1, x.shape[-1])
        return x

    return {
        "rms_norm": lambda x, weight: ops.LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False),
        "layer_norm": lambda x, weight, bias: ops.LigerLayerNormFunction.apply(x, weight, bias, 1e-5),
        "add_rms_norm": lambda x, residual, weight: ops.LigerFusedAddRMSNormFunction.apply(
            x, residual, weight, 1e-6, 0.0, "llama", False
        ),
        "softmax": ops.LigerSoftmaxFunction.apply,
        "cross_entropy": lambda logits, labels: ops.LigerCrossEntropyFunction.apply(
            logits, labels, None, -100, 0.0, 0.0, "mean", None, False
        )[0],
        "swiglu": ops.LigerSiLUMulFunction.apply,
        "rope": rope,
    }


def _quack() -> dict[str, Function]:
    quack, norms = import_module("quack"), import_module("quack.rmsnorm")

    class LayerNorm(torch.autograd.Function):
        """QuACK has both directions, and nothing that joins them."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            out, rstd, mean = norms.layernorm_fwd(x, weight, bias, 1e-5, return_rstd=True, return_mean=True)
            ctx.save_for_backward(x, weight, rstd, mean)
            return out

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x, weight, rstd, mean = ctx.saved_tensors
            return norms.layernorm_bwd(x, weight, dy, rstd, mean)

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            return LayerNorm.apply(x, weight, bias)
        return norms.layernorm_fwd(x, weight, bias, 1e-5)

    return {
        "rms_norm": lambda x, weight: quack.rmsnorm(x, weight, eps=1e-6),
        "layer_norm": layer_norm,
        "add_rms_norm": lambda x, residual, weight: quack.rmsnorm(x, weight, residual=residual, eps=1e-6, prenorm=True),
        "softmax": quack.softmax,
        "cross_entropy": quack.cross_entropy,
        "rope": import_module("quack.rotary").apply_rotary_emb,
    }


# Name, package, the least compute capability that its kernels are written for, and what loads it.
LIBRARIES = (("Liger", "liger_kernel", 8, _liger), ("QuACK", "quack", 9, _quack))
