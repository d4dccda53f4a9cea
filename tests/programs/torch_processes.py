"""Run by torch/test_processes.py: every operator in processes that were forked after the thread pool was used.

A separate process, since a hanging one is ended by a timeout."""

import numpy as np
import torch
import torch.multiprocessing as multiprocessing

from tests.helpers.frameworks import Torch
from tests.helpers.torch_functions import assert_same, leaves, outputs_and_gradients, tensor_function
from tests.specifications import SPECIFICATIONS

SHAPE = (64, 520)  # enough for several threads
backend = Torch("cpu")


def results(place: int) -> tuple[torch.Tensor, ...]:
    spec = SPECIFICATIONS[place]
    sample = spec.sample(SHAPE, np.random.default_rng(place))
    function, tensors = tensor_function(backend, spec, sample, backend.tensors(sample, "float32"))
    return tuple(x.detach() for x in outputs_and_gradients(torch, function, leaves(spec, sample, tensors)))


class Results(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(SPECIFICATIONS)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        return results(place)


def compare(queue) -> None:
    # GNU's OpenMP, which torch uses, hangs in a forked process that requests threads; so do torch's own operators.
    torch.set_num_threads(1)
    for place, those in enumerate(expected):
        assert_same(torch, results(place), those)
    queue.put("same")


expected = [results(place) for place in range(len(SPECIFICATIONS))]
loader = torch.utils.data.DataLoader(Results(), batch_size=None, num_workers=2, multiprocessing_context="fork")
for spec, got, those in zip(SPECIFICATIONS, loader, expected, strict=True):
    assert_same(torch, tuple(got), those)
    print(spec.name)

context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=compare, args=(queue,))
process.start()
process.join()
assert process.exitcode == 0 and queue.get() == "same"
