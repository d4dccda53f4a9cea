"""What each operator computes, over the functions `n` that a framework has.

A formula is what a user writes without fusedops. Compilers get it, and in float64 it is the reference.
"""

from __future__ import annotations

from typing import Any

from benchmarks.operators.layouts import Function


def formulas(n: Any) -> dict[str, Function]:
    """16-bit inputs are computed in float32 (`n.wide`) and rounded once, in x's dtype (`n.like`)."""

    def rms_norm(x: Any, weight: Any) -> Any:
        h = n.wide(x)
        return n.like(h * n.rsqrt(n.mean(h * h) + 1e-6) * n.wide(weight), x)

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        h = n.wide(x)
        h = h - n.mean(h)
        return n.like(h * n.rsqrt(n.mean(h * h) + 1e-5) * n.wide(weight) + n.wide(bias), x)

    def add_rms_norm(x: Any, residual: Any, weight: Any) -> Any:
        total = x + residual
        return rms_norm(total, weight), total

    def add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
        total = x + residual
        return layer_norm(total, weight, bias), total

    def bias_act(x: Any, bias: Any) -> Any:
        h = n.wide(x) + n.wide(bias)
        return n.like(0.5 * h * (1 + n.tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))), x)

    def swiglu(gate: Any, up: Any) -> Any:
        h = n.wide(gate)
        return n.like(h * n.sigmoid(h) * n.wide(up), gate)

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        a, b = n.wide(x[..., :half]), n.wide(x[..., half:])
        c, s = n.wide(cos)[:, None, :], n.wide(sin)[:, None, :]
        return n.like(n.join(a * c - b * s, b * c + a * s), x)

    return {
        "axpby": lambda a, x, b: a * x + b,
        "add": lambda x, y: x + y,
        "scale": lambda x, factor: x * factor,
        "relu": n.relu,
        "polynomial_activation": lambda x: x * x + x + 1,
        "rms_norm": rms_norm,
        "layer_norm": layer_norm,
        "add_rms_norm": add_rms_norm,
        "add_layer_norm": add_layer_norm,
        "softmax": n.softmax,
        "cross_entropy": lambda logits, labels: n.cross_entropy(n.wide(logits), labels),
        "bias_act": bias_act,
        "swiglu": swiglu,
        "rope": rope,
    }
