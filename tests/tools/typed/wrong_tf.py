"""Calls that type checkers must refuse, each for the reason in its comment."""

from __future__ import annotations

import tensorflow as tf

import fusedops.tf as fo
import fusedops.tf.keras as fk
from fusedops.tf import rms_nrom as misspelt  # error: [attr-defined]

x = tf.ones([2, 4])

fo.rms_nrom(x)  # error: [attr-defined]
print(fo.importlib)  # error: [attr-defined]
fo.rms_norm(x, epz=3)  # error: [call-arg]
fo.rms_norm(x, x, 1e-6)  # error: [call-arg]
fo.rms_norm(1)  # error: [arg-type]
fo.rms_norm("x")  # error: [arg-type]
fo.rms_norm(x, name=3)  # error: [arg-type]
fo.softmax(x, causal="yes")  # error: [arg-type]
fo.bias_act(x, None, "gleu")  # error: [arg-type]
fo.geglu(x, approximate="erf")  # error: [arg-type]
fo.elementwise(3)  # error: [arg-type]
fo.elementwise("x", ["x"])  # error: [call-arg]
fo.elementwise("x")("x")  # error: [arg-type]
print(fo.elementwise("x").inptus)  # error: [attr-defined]
fo.cross_entropy(x, x, reduction="average")  # error: [arg-type]
print(fo.add_rms_norm(x, x).shape)  # error: [attr-defined]
print(fo.library_path() + 1)  # error: [operator]
fo.convert(x)  # error: [attr-defined]
fk.Desne(4)  # error: [attr-defined]
fk.GatedDense("4")  # error: [arg-type]
fk.convert(fk.Dense(4), verbose="no")  # error: [arg-type]
fk.revert()  # error: [call-arg]
misspelt(x)
