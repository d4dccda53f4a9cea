"""PyTorch: several Python threads, and forked processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.helpers.running import run_program
from tests.helpers.torch_functions import assert_same, leaves, outputs_and_gradients, tensor_function
from tests.specifications import SPECIFICATIONS


def test_threads(torch_backend, random):
    """Each thread calls every operator, forward and backward, in parallel with the others."""
    torch = torch_backend.torch
    calls = []
    for spec in SPECIFICATIONS:
        sample = spec.sample((64, 520), random)
        function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))
        calls.append((function, leaves(spec, sample, tensors)))

    def all_calls(first):
        order = [*calls[first:], *calls[:first]]
        found = [outputs_and_gradients(torch, function, inputs) for function, inputs in order]
        return found[len(calls) - first :] + found[: len(calls) - first]

    expected = all_calls(0)
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(all_calls, range(len(calls)), timeout=300):
            for got, those in zip(found, expected, strict=True):
                assert_same(torch, got, those)


def test_forked_processes(torch_cpu):
    """Workers of a DataLoader, and the user's own process; without GPUs, with which torch refuses forks."""
    done = run_program("torch_processes.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in SPECIFICATIONS]
