"""Calls that type checkers must refuse, each for the reason in its comment."""

from __future__ import annotations

import torch

import fusedops
import fusedops.torch as fo
import fusedops.torch.nn as fnn
from fusedops.torch import rms_nrom as misspelt  # error: [attr-defined]

x = torch.ones(2, 4)

fo.rms_nrom(x)  # error: [attr-defined]
print(fo.importlib)  # error: [attr-defined]
fusedops.show_confg()  # error: [attr-defined]
fo.rms_norm(x, epz=3)  # error: [call-arg]
fo.rms_norm(x, x, 1e-6)  # error: [call-arg]
fo.rms_norm()  # error: [call-arg]
fo.rms_norm([1.0])  # error: [arg-type]
fo.rms_norm(x, name="norm")  # error: [call-arg]
fo.softmax(x, causal="yes")  # error: [arg-type]
fo.bias_act(x, None, "gleu")  # error: [arg-type]
fo.geglu(x, approximate="erf")  # error: [arg-type]
fo.elementwise(3)  # error: [arg-type]
fo.elementwise("x", ["x"])  # error: [call-arg]
fo.elementwise("x")([1.0])  # error: [arg-type]
print(fo.elementwise("x").inptus)  # error: [attr-defined]
fo.cross_entropy(x, x, reduction="average")  # error: [arg-type]
fo.polynomial_activation(x, 3.0)  # error: [arg-type]
print(fo.add_rms_norm(x, x).shape)  # error: [attr-defined]
print(fo.library_path())  # error: [attr-defined]
fo.convert("model")  # error: [type-var]
fo.convert(fnn.SwiGLU(), verbos=True)  # error: [call-arg]
fo.explain("model")  # error: [arg-type]
fo.jit.load(verbose="no")  # error: [arg-type]
fnn.RMSNrom(4)  # error: [attr-defined]
fnn.RMSNorm("4")  # error: [arg-type]
fnn.RMSNorm(4, epz=1)  # error: [call-arg]
fnn.RMSNorm(4, dtype="float32")  # error: [arg-type]
fnn.RMSNorm(4)(x, x)  # error: [call-arg]
fnn.AddRMSNorm(4)(x)  # error: [call-arg]
fnn.Softmax(-1)(x, causal=True)  # error: [call-arg]
misspelt(x)
fo.optim.AdamW([x], foo=3)  # error: [call-arg]
fo.optim.SGD([x], lr="fast")  # error: [arg-type]
