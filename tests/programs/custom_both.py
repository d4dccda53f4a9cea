"""Run by tests/custom/test_operators.py: loads one library into both frameworks, which must give the same bits.
Arguments: a folder for sources, the device, the framework that comes first."""

import importlib
import sys

import numpy as np
import tensorflow as tf
import torch
from custom_operators import DEVICE, SCALED, SQUARE, check, of_guide, of_scaled, run

LOADED = {}
for name in sorted(["tf", "torch"], key=lambda name: name != sys.argv[3]):
    fo = importlib.import_module(f"fusedops.{name}")
    LOADED[name] = (
        fo.load("guide", SQUARE, gradients=of_guide()),
        fo.load("mine", SCALED, gradients={"scaled": of_scaled}),
    )
of_torch, of_tf = LOADED["torch"], LOADED["tf"]
PLACE = tf.device("/CPU:0" if DEVICE == "cpu" else "/GPU:0")


@check
def same_bits():
    for dtype in (np.float64, np.float32, np.float16):
        values = np.random.default_rng(0).normal(size=(33, 7)).astype(dtype)
        x = torch.tensor(values, device=DEVICE, requires_grad=True)
        y = of_torch[0].square(x)
        (dx,) = torch.autograd.grad(y.sum(), x)
        with PLACE, tf.GradientTape() as tape:
            z = tf.constant(values)
            tape.watch(z)
            w = of_tf[0].square(z)
        dz = tape.gradient(w, z)
        assert y.detach().cpu().numpy().tobytes() == w.numpy().tobytes()
        assert dx.cpu().numpy().tobytes() == dz.numpy().tobytes()


@check
def formulas_of_both():
    if DEVICE == "cuda":
        return
    x = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(of_torch[1].scaled(x).sum(), x)[0].tolist() == [2, 2, 2]
    z = tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(z)
        y = of_tf[1].scaled(z)
    assert tape.gradient(y, z).numpy().tolist() == [2, 2, 2]


run()
