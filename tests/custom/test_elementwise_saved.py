"""Expressions in other processes: exported or saved ones work once the expression is defined, and otherwise the
framework names the missing operator."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import python

# Name -> a function's definition, and its call. Numbers, masks and gradients need no other operator than the
# definition's.
CALLS = {
    "norm": ("x * rsqrt(mean(x * x) + 1e-6) * w", "f(x, w)"),
    "number": ("x * s + w", "f(x, 0.5, w)"),
    "numbers": ("a * x + b + w * c", "f(3, x, -1.5, w, 2.0)"),
    "shapes": ("m = mean(x); return m, w * rsqrt(mean(x * x) + eps), s * m", "sum_of(f(x, w, 1e-3, 2.0))"),
    "mask": ("where(mask, x * w, s)", "f(x > 0, x, w, 0.5)"),
    "named": ("Gate * g_1 + g1", "f(g1=0.5, Gate=x, g_1=w)"),
}
DEFINE = 'f = fo.elementwise("{text}", name="saved")'

# Another process defines these functions, and loads these folders. One process serves all functions, since its start
# takes longest.
PROGRAM = """
from pathlib import Path
import numpy as np
{imports}
for text in {texts}:
    fo.elementwise(text, name="saved")
for folder in map(Path, {folders}):
    x = np.load(folder / "x.npy")
    try:
        {take}
    except Exception as error:
        print(folder.name, type(error).__name__, str(error).replace(chr(10), " "))
    else:
        np.save(folder / "y.npy", y)
"""
TORCH = "import torch, fusedops.torch as fo"
TENSORFLOW = "import tensorflow as tf, fusedops.tf as fo"
TAKE = {
    "export": 'y = torch.export.load(folder / "program.pt2").module()(torch.from_numpy(x)).detach().numpy()',
    "trace": 'y = torch.jit.load(folder / "program")(torch.from_numpy(x)).detach().numpy()',
    "saved_model": """with tf.device("/CPU:0"):
            model = tf.saved_model.load(folder / "program")
            y = np.concatenate(model.call(tf.constant(x)))""",
}


def made(fo, name):
    """The function's call of x and w."""
    text, call = CALLS[name]
    names = {"fo": fo, "sum_of": lambda results: results[0] + results[1] + results[2]}
    exec(DEFINE.format(text=text), names)
    return eval(f"lambda x, w: {call}", names)


def check(way, imports, folder, expected, lack):
    """`expected` has the results by name; programs and inputs are in folders of these names."""
    folders = [str(folder / name) for name in expected]
    code = PROGRAM.format(imports=imports, texts=[], folders=folders, take=TAKE[way])
    done = python(code)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(expected)
    lacking = set(re.findall(rf"{lack}\w+", done.stdout + done.stderr))
    assert len(lacking) >= len(expected)  # torch.export names them in warnings
    texts = [text for text, _ in CALLS.values()]
    done = python(PROGRAM.format(imports=imports, texts=texts, folders=folders, take=TAKE[way]))
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr
    for name, y in expected.items():
        assert_same_bits(np.load(folder / name / "y.npy"), y)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["export", "trace"])
def test_exported_programs(torch_cpu, random, tmp_path, way):
    torch = torch_cpu.torch
    x = random.normal(size=(6, 40)).astype(np.float32)
    given, expected = torch.from_numpy(x), {}

    class Module(torch.nn.Module):
        def __init__(self, call):
            super().__init__()
            self.call = call
            self.w = torch.nn.Parameter(torch.linspace(0, 2, 40))

        def forward(self, x):
            return self.call(x, self.w)

    for name in CALLS:
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", x)
        module = Module(made(torch_cpu.functions, name))
        if way == "export":
            torch.export.save(torch.export.export(module, (given,)), tmp_path / name / "program.pt2")
        else:
            torch.jit.trace(module, (given,)).save(tmp_path / name / "program")
        expected[name] = module(given).detach().numpy()
    check(way, TORCH, tmp_path, expected, "saved_")


@pytest.mark.slow
def test_saved_models(tf_cpu, random, tmp_path):
    tf = tf_cpu.tf
    x, expected = random.normal(size=(6, 40)).astype(np.float32), {}

    def saved(name):
        call, module = made(tf_cpu.functions, name), tf.Module()
        module.w = tf.Variable(np.linspace(0, 2, 40, dtype=np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None, 40], tf.float32)])
        def with_gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x, module.w)
            return y, tape.gradient(y, x)

        module.call = with_gradient
        tf.saved_model.save(module, tmp_path / name / "program")
        with tf_cpu.place:
            return np.concatenate(module.call(x))

    for name in CALLS:
        expected[name] = saved(name)
        np.save(tmp_path / name / "x.npy", x)
    check("saved_model", TENSORFLOW, tmp_path, expected, "FusedopsSaved")


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
def test_a_full_operator_table_is_an_error(package):
    """One error message when the function is defined."""
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
