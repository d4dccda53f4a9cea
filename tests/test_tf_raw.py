"""TensorFlow: the compiled library alone, in a process that never imports fusedops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numerics import assert_same_bits
from specifications import SPECIFICATIONS


@pytest.fixture(scope="module")
def arguments():
    return {spec.name: spec.sample((5, 33), np.random.default_rng(3)) for spec in SPECIFICATIONS}


def test_without_the_package(tf_cpu, arguments, tmp_path):
    """The operators, and only they: same bits, same sentences."""
    from fusedops.tf.operators import DECLARED

    calls = {}
    for name, sample in arguments.items():
        arrays = {
            key: np.asarray(x, x.dtype if key in sample.tensors and key not in sample.floating else np.float32)
            for key, x in sample.inputs.items()
            if x is not None
        }
        np.savez(tmp_path / name, **arrays)
        optional = [input.name for input in DECLARED[name].inputs if input.kind == "optional"]
        attributes = {key: repr(x) if isinstance(x, float) else x for key, x in sample.options.items()}
        calls[name] = {"optional": optional, "attributes": attributes}
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    program = Path(__file__).with_name("tensorflow_raw.py")
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    elsewhere = [folder for folder in folders if folder and not Path(folder, "fusedops").exists()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(elsewhere)}
    command = [sys.executable, program, tf_cpu.functions.library_path(), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for name, sample in arguments.items():
        results = np.load(tmp_path / f"{name}.results.npz")
        expected = tf_cpu.call(name, tf_cpu.tensors(sample, "float32"), sample.options)
        for i, output in enumerate(expected):
            assert_same_bits(results[f"arr_{i}"], output.numpy(), name)
    for name in arguments:
        assert re.search(
            rf"{name}: .*fusedops\.{name}: \w+ must be float64, float32, float16 or bfloat16; got int32", done.stdout
        )


def test_names(tf_cpu):
    tf = tf_cpu.tf
    library = tf.load_op_library(tf_cpu.functions.library_path())
    for spec in SPECIFICATIONS:
        assert callable(getattr(library, f"fusedops_{spec.name}"))
        camel = "".join(part.capitalize() for part in spec.name.split("_"))
        assert callable(getattr(tf.raw_ops, f"Fusedops{camel}", None) or getattr(library, f"Fusedops{camel}"))
