"""The time of an optimizer's step over many parameters, beside the frameworks' own, and the least that memory allows.

python -m benchmarks.optimizers                  on the GPU if there is one: 10^9 parameters, and 10 000 small tensors
python -m benchmarks.optimizers --elements 1e7   fewer
python -m benchmarks.optimizers --framework tf   in this process
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

FRAMEWORKS = ("torch", "tf")
DTYPES = ("float32", "bfloat16")
REPEATS, STEPS = 3, 16
SMALL = 1000  # elements of a small tensor


@dataclass(frozen=True)
class Case:
    name: str
    sizes: tuple[int, ...]  # of its tensors
    dtype: str

    @property
    def bytes(self) -> int:
        """Read once: parameter, gradient and two states; written once: all but the gradient."""
        return sum(self.sizes) * 7 * (4 if self.dtype == "float32" else 2)


def cases(elements: int) -> Iterator[Case]:
    for dtype in DTYPES:
        large = (elements - 200 * SMALL) // 200
        yield Case(f"{elements:.0e} in 200 large and 200 small tensors", (large,) * 200 + (SMALL,) * 200, dtype)
        yield Case("10 000 small tensors", (SMALL,) * 10_000, dtype)


def seconds(step: Callable[[], Any], wait: Callable[[], Any]) -> tuple[float, float]:
    """Of one step of several, one behind the other as in training; and of the host alone, which may run ahead."""
    for _ in range(3):
        step()
    wait()
    whole, host = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        host.append((time.perf_counter() - start) / STEPS)
        wait()
        whole.append((time.perf_counter() - start) / STEPS)
    return median(whole), median(host)


def in_torch(case: Case) -> Iterator[tuple[str, float, float]]:
    import torch

    from fusedops.torch.optim import AdamW

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def copied() -> Iterator[tuple[str, float, float]]:
        half = max(case.bytes // 4, 1)
        source, target = (torch.empty(half, dtype=torch.uint8, device=device) for _ in range(2))
        taken, _ = seconds(lambda: target.copy_(source), wait)
        yield "floor: as fast as a copy", taken * case.bytes / (2 * half), 0.0

    yield from copied()
    makers: dict[str, Callable[[Any], Any]] = {
        "fusedops": lambda params: AdamW(params),
        "fusedops, norm clipped": lambda params: AdamW(params, max_grad_norm=1.0),
        "torch, fused": lambda params: torch.optim.AdamW(params, fused=True),
        "torch, foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    }
    for name, make in makers.items():
        params = [
            torch.nn.Parameter(torch.zeros(n, dtype=getattr(torch, case.dtype), device=device)) for n in case.sizes
        ]
        for p in params:
            p.grad = torch.full_like(p, 1e-3)
        yield (name, *seconds(make(params).step, wait))


def in_tf(case: Case) -> Iterator[tuple[str, float, float]]:
    import keras
    import tensorflow as tf

    import fusedops.tf.keras as fk

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    wait = tf.test.experimental.sync_devices

    def compiled(optimizer: Any, grads: Any, variables: Any, jit: bool) -> Any:
        # In training gradients arise in the graph. As arguments of a function each would take Python 18 microseconds,
        # all of them longer than the step.
        return tf.function(lambda: optimizer.apply(grads, variables), jit_compile=jit)

    for module, title in ((fk.optimizers, "fusedops"), (keras.optimizers, "Keras")):
        for jit in (False, True):
            variables = [keras.Variable(tf.zeros(n, case.dtype), dtype=case.dtype) for n in case.sizes]
            grads = [tf.fill((n,), tf.cast(1e-3, case.dtype)) for n in case.sizes]
            optimizer = module.AdamW()
            optimizer.build(variables)
            step = compiled(optimizer, grads, variables, jit)
            yield (f"{title}, {'XLA' if jit else 'graph'}", *seconds(step, wait))
            del variables, grads, optimizer, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=float, default=1e9)
    parser.add_argument("--framework", choices=FRAMEWORKS)
    options = parser.parse_args()
    if options.framework is None:  # each in a process of its own, which frees the GPU's memory
        for framework in FRAMEWORKS:
            command = [sys.executable, "-m", "benchmarks.optimizers", f"--elements={options.elements}"]
            subprocess.run([*command, f"--framework={framework}"], check=False)
        return
    for case in cases(int(options.elements)):
        print(f"\nAdamW, {options.framework}, {case.dtype}, {case.name}: {case.bytes / 1e9:.2f} GB")
        for name, whole, host in (in_torch if options.framework == "torch" else in_tf)(case):
            print(f"  {name:26} {whole * 1e3:9.3f} ms, of which the host {host * 1e3:9.3f} ms", flush=True)


if __name__ == "__main__":
    main()
