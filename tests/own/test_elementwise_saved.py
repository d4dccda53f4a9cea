"""Functions of a user's in other processes: what was exported or saved is taken up where the expression is made first,
and elsewhere the framework names the operator that it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import python

DEFINE = 'f = fo.elementwise("x * rsqrt(mean(x * x) + 1e-6) * w", name="saved")'
TORCH = """
import numpy as np, torch, fusedops.torch as fo
{define}
x = torch.from_numpy(np.load("{folder}/x.npy"))
y = torch.export.load("{folder}/program.pt2").module()(x)
np.save("{folder}/y.npy", y.detach().numpy())
"""
TENSORFLOW = """
import numpy as np, tensorflow as tf, fusedops.tf as fo
{define}
x = tf.constant(np.load("{folder}/x.npy"))
model = tf.saved_model.load("{folder}/model")
y = model.call(x)
np.save("{folder}/y.npy", y.numpy())
"""


def check(code, folder, x, expected, lack):
    np.save(folder / "x.npy", x)
    assert lack in python(code.format(define="", folder=folder)).stderr
    done = python(code.format(define=DEFINE, folder=folder))
    assert done.returncode == 0, done.stderr
    assert_same_bits(np.load(folder / "y.npy"), expected)


@pytest.mark.slow
def test_exported_program(torch_cpu, random, tmp_path):
    torch = torch_cpu.torch
    names = {"fo": torch_cpu.functions}
    exec(DEFINE, names)
    x = random.normal(size=(6, 40)).astype(np.float32)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.linspace(0, 2, 40))

        def forward(self, x):
            return names["f"](x, self.w)

    module, given = Module(), torch.from_numpy(x)
    torch.export.save(torch.export.export(module, (given,)), tmp_path / "program.pt2")
    check(TORCH, tmp_path, x, module(given).detach().numpy(), "saved_")


@pytest.mark.slow
def test_saved_model(tf_cpu, random, tmp_path):
    tf = tf_cpu.tf
    names = {"fo": tf_cpu.functions}
    exec(DEFINE, names)
    x = random.normal(size=(6, 40)).astype(np.float32)
    module = tf.Module()
    module.w = tf.Variable(np.linspace(0, 2, 40, dtype=np.float32))
    module.call = tf.function(
        lambda x: names["f"](x, module.w), input_signature=[tf.TensorSpec([None, 40], tf.float32)]
    )
    tf.saved_model.save(module, tmp_path / "model")
    check(TENSORFLOW, tmp_path, x, module.call(x).numpy(), "FusedopsSaved")


MANY = """
import ctypes
from fusedops.expressions import Expression, packed
from fusedops.{framework} import library
core = library.LIBRARY if isinstance(library.LIBRARY, ctypes.CDLL) else ctypes.CDLL(str(library.LIBRARY))
core.fusedops_define.restype = ctypes.c_char_p
refused = None
for number in range(5000):
    definition = Expression(f"x * {{number}}.5", name="many").definition()
    for row in (definition.backward(), definition):
        refused = refused or core.fusedops_define(ctypes.byref(packed(row)))
    if refused:
        break
print(number, refused.decode())
import fusedops.{framework} as fo
try:
    fo.elementwise("x - 1", name="last")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
def test_more_than_the_table_holds(package):
    """One sentence, where the function is made."""
    done = python(MANY.format(framework=package.__name__.removeprefix("fusedops.")))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "4096" in first
    assert second.partition("last_")[0] == first.split(" ", 1)[1].partition("many_")[0]
    assert 1500 < int(first.split()[0]) < 2048
