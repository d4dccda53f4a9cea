"""Calls that type checkers must accept, and their types; they are run as well."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import fusedops
import fusedops.torch as fo
import fusedops.torch.nn as fnn
from fusedops.expressions.function import Elementwise
from fusedops.torch import convert, layer_norm

x, weight = torch.ones(2, 4), torch.ones(4)
cos = sin = torch.ones(2, 2)

# functions
assert_type(fo.rms_norm(x), Tensor)
assert_type(fo.rms_norm(x, weight, eps=1e-5, weight_offset=1), Tensor)
assert_type(fo.add_rms_norm(x, residual=x), tuple[Tensor, Tensor])
assert_type(layer_norm(x, bias=weight), Tensor)
assert_type(fo.axpby(2, x, x), Tensor)
assert_type(fo.scale(x, torch.ones(1)), Tensor)
assert_type(fo.bias_act(x, weight, "gelu_tanh"), Tensor)
assert_type(fo.softmax(x, mask=x > 0, causal=True), Tensor)
assert_type(fo.cross_entropy(x, torch.tensor([0, 1]), reduction="none"), Tensor)
assert_type(fo.rope(x[:, None], cos, sin), Tensor)
assert_type(fo.rms_norm_rope(x[:, None], None, cos, sin), Tensor)
coefficients: Sequence[float] = [1, 2.5]
assert_type(fo.polynomial_activation(x, coefficients), Tensor)

# expressions
gate = fo.elementwise("silu(g) * u + scale", inputs=["g", "u", "scale"], name="gate")
assert_type(gate, Elementwise[Tensor, Tensor])
assert_type(gate.inputs, tuple[str, ...])
assert_type(gate.source + gate.derivative + gate.expression, str)
assert_type(gate(x, weight, 2), Tensor | Any)
assert_type(gate(x, scale=0.5, u=weight), Tensor | Any)
gated: Tensor = gate(x, x, x)
first, second = fo.elementwise("return x + y, x")(x, 1.0)

# layers
assert_type(fnn.RMSNorm(4, device="cpu", dtype=torch.float32)(x), Tensor)
assert_type(fnn.RMSNorm((2, 4)).why_not(x), "str | None")
assert_type(fnn.AddLayerNorm(4)(x, x), tuple[Tensor, Tensor])
assert_type(fo.nn.Softmax(-1, causal=True)(x, mask=x > 0), Tensor)
assert_type(fnn.LayerNorm(4).weight, nn.Parameter)
assert_type(fnn.Linear(4, 2, activation="gelu")(x), Tensor)
assert_type(fnn.GEGLU(approximate="tanh")(x, up=x), Tensor)
model = nn.Sequential(fnn.RMSNorm(4), nn.LayerNorm(4))

# other names
assert_type(fo.convert(model, verbose=False), nn.Sequential)
assert_type(fo.revert(convert(nn.LayerNorm(4), verbose=False)), nn.LayerNorm)
assert_type(fo.explain(model, x).ours.seconds, float)
assert_type(fo.graphed(model, max_graphs=2), nn.Sequential)
assert_type(fo.jit.load(verbose=False), ModuleType)
assert_type(fusedops.torch.jit.load(verbose=False), ModuleType)
assert_type(fusedops.__version__, str)
fo.optim.AdamW([weight], 1e-3, (0.9, 0.99), master_weights=True, max_grad_norm=1.0).step()
fusedops.show_config()
