"""TensorFlow: several devices in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from specifications import SPECIFICATIONS


def run(kind: str) -> None:
    program = Path(__file__).with_name("tensorflow_distribution.py")
    done = subprocess.run([sys.executable, program, kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in SPECIFICATIONS]


def test_mirrored_on_two_cpus(tf_cpu):
    run("CPU")


def test_mirrored_on_two_gpus(tf_gpu):
    if tf_gpu.gpus() < 2:
        pytest.skip("GPU: only one")
    run("GPU")
