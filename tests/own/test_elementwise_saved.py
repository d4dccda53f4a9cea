"""Functions of a user's in other processes: what was exported or saved is taken up where the expression is made first,
and elsewhere the framework names the operator that it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import python

# By name: what makes a function, and its call. A number, a mask or a gradient needs no other operator than the making.
CALLS = {
    "norm": ("x * rsqrt(mean(x * x) + 1e-6) * w", "f(x, w)"),
    "number": ("x * s + w", "f(x, 0.5, w)"),
    "numbers": ("a * x + b + w * c", "f(3, x, -1.5, w, 2.0)"),
    "shapes": ("m = mean(x); return m, w * rsqrt(mean(x * x) + eps), s * m", "sum_of(f(x, w, 1e-3, 2.0))"),
    "mask": ("where(mask, x * w, s)", "f(x > 0, x, w, 0.5)"),
    "named": ("Gate * g_1 + g1", "f(g1=0.5, Gate=x, g_1=w)"),
}
DEFINE = 'f = fo.elementwise("{text}", name="saved")'
TORCH = """
import numpy as np, torch, fusedops.torch as fo
{define}
x = torch.from_numpy(np.load("{folder}/x.npy"))
y = torch.export.load("{folder}/program.pt2").module()(x)
np.save("{folder}/y.npy", y.detach().numpy())
"""
TRACED = (
    TORCH.replace("torch.export.load", "torch.jit.load").replace("program.pt2", "program.pt").replace(".module()", "")
)
TENSORFLOW = """
import numpy as np, tensorflow as tf, fusedops.tf as fo
{define}
x = tf.constant(np.load("{folder}/x.npy"))
model = tf.saved_model.load("{folder}/model")
y, dx = model.call(x)
np.save("{folder}/y.npy", np.concatenate([y, dx]))
"""


def made(fo, name):
    """The text that makes the function, and the function's call of x and w."""
    text, call = CALLS[name]
    define = DEFINE.format(text=text)
    names = {"fo": fo, "sum_of": lambda results: results[0] + results[1] + results[2]}
    exec(define, names)
    return define, eval(f"lambda x, w: {call}", names)


def check(code, define, folder, x, expected, lack):
    np.save(folder / "x.npy", x)
    assert lack in python(code.format(define="", folder=folder)).stderr
    done = python(code.format(define=define, folder=folder))
    assert done.returncode == 0, done.stderr
    assert_same_bits(np.load(folder / "y.npy"), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", ["export", "trace"])
def test_exported_program(torch_cpu, random, tmp_path, name, way):
    torch = torch_cpu.torch
    define, call = made(torch_cpu.functions, name)
    x = random.normal(size=(6, 40)).astype(np.float32)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.linspace(0, 2, 40))

        def forward(self, x):
            return call(x, self.w)

    module, given = Module(), torch.from_numpy(x)
    if way == "export":
        torch.export.save(torch.export.export(module, (given,)), tmp_path / "program.pt2")
    else:
        torch.jit.trace(module, (given,)).save(tmp_path / "program.pt")
    code = TORCH if way == "export" else TRACED
    check(code, define, tmp_path, x, module(given).detach().numpy(), "saved_")


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_saved_model(tf_cpu, random, tmp_path, name):
    tf = tf_cpu.tf
    define, call = made(tf_cpu.functions, name)
    x = random.normal(size=(6, 40)).astype(np.float32)
    module = tf.Module()
    module.w = tf.Variable(np.linspace(0, 2, 40, dtype=np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, 40], tf.float32)])
    def with_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x, module.w)
        return y, tape.gradient(y, x)

    module.call = with_gradient
    tf.saved_model.save(module, tmp_path / "model")
    check(TENSORFLOW, define, tmp_path, x, np.concatenate(module.call(x)), "FusedopsSaved")


MANY = """
import ctypes
from dataclasses import replace
from fusedops.expressions import Expression, packed
from fusedops.{framework} import library
core = library.LIBRARY if isinstance(library.LIBRARY, ctypes.CDLL) else ctypes.CDLL(str(library.LIBRARY))
core.fusedops_define.restype = ctypes.c_char_p
refused, number = None, 0
definition = Expression("x * 1.5", name="many").definition().backward()
while refused is None:
    number += 1
    refused = core.fusedops_define(ctypes.byref(packed(replace(definition, name=f"many_{{number}}"))))
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
    number, sentence = first.split(" ", 1)
    assert sentence == second
    assert sentence == (
        "fusedops: a process can have at most 4096 operators; make an expression once and pass numbers that vary as "
        "inputs, f(x, number)"
    )
    assert 3_800 < int(number) < 4_096
