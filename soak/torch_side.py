"""The ways to call an operator in PyTorch, as source code, which is both run and printed on failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from soak.call import Call
from soak.layout import Tensor
from tests.helpers.frameworks import Backend
from tests.helpers.numerics import numpy_dtype

HEADER = "import torch, fusedops.torch as fo"
ARRAY = "x.detach().double().cpu().numpy()"
LIST = "[x.tolist() for x in {results}]"


_BACKWARD = """\
outs = f({tensors})
return *outs, *torch.autograd.grad(outs, [{wanted}], [{upstream}])"""
WAYS = {
    "forward": "return f({tensors})",
    "inference mode": "with torch.inference_mode(): return f({tensors})",
    "backward": _BACKWARD,
    "compiled": _BACKWARD,
    "vjp": """\
outs, pull_back = torch.func.vjp(lambda {wanted}: f({tensors}), {wanted})
return *outs, *pull_back(({upstream},))""",
    "jvp": """\
outs, tangents = torch.func.jvp(lambda {wanted}: f({tensors}), ({wanted},), ({tangents},))
return *outs, *tangents""",
    "double backward": """\
first = torch.autograd.grad(f({tensors}), [{wanted}], [{upstream}], create_graph=True)
return torch.autograd.grad(first, [{wanted}, {upstream}], [{directions}], materialize_grads=True)""",
    "vmap": "return torch.vmap(f, ({dims},))({tensors})",
    "vmap of gradients": """\
def once({tensors}, {upstream}):
    outs, pull_back = torch.func.vjp(lambda {wanted}: f({tensors}), {wanted})
    return *outs, *pull_back(({upstream},))
return torch.vmap(once, ({dims}, {upstream_dims}))({tensors}, {upstream})""",
    "threads": _BACKWARD,
}
FUNCTIONS = {"compiled": "torch.compile({f}, dynamic=True)"}


def needs_gradient(call: Call, name: str, way: str) -> bool:
    if way == "double backward" and name in call.upstream:
        return True
    return name in call.wanted and way in ("backward", "compiled", "double backward", "threads")


def tensor_code(call: Call, name: str, x: Tensor, values: str, way: str) -> str:
    view = f".view({x.shape})" if x.is_plain else f".as_strided({x.shape}, {x.strides}, {x.offset})"
    code = f"torch.tensor({values}, dtype=torch.{x.dtype}, device={call.plan.device!r})"
    code += "" if x.is_plain and len(x.shape) == 1 else view
    return code + (".requires_grad_()" if needs_gradient(call, name, way) else "")


def settings_code(call: Call) -> list[str]:
    return [f"torch.set_num_threads({call.plan.threads})"]


class Side:
    def __init__(self, backend: Backend) -> None:
        import torch

        self.torch, self.backend = torch, backend
        self.globals = {"torch": torch, "fo": backend.functions}
        torch._dynamo.config.cache_size_limit = 64  # compiled variants of one operator

    def tensor(self, call: Call, name: str, x: Tensor, way: str) -> Any:
        tensor = self.backend.from_numpy(x.memory).as_strided(x.shape, x.strides, x.offset)
        return tensor.requires_grad_() if needs_gradient(call, name, way) else tensor

    def prepare(self, call: Call) -> None:
        if self.torch.get_num_threads() != call.plan.threads:
            self.torch.set_num_threads(call.plan.threads)

    def fetch(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Copies the results to the host, from a GPU in one transfer: each copy waits for the other processes."""
        if self.backend.device == "cpu":
            return [self.backend.to_numpy(x) for x in results]
        plain = self.torch.contiguous_format  # contiguous() would not change the stride of a single element
        parts = [x.detach().clone(memory_format=plain).reshape(-1).view(self.torch.uint8) for x in results]
        return split(self.torch.cat(parts).cpu().numpy(), [(self.backend.dtype_of(x), x.shape) for x in results])

    def clear_caches(self) -> None:
        """Does nothing: eager PyTorch has no such caches."""

    def memory(self) -> int:
        """Bytes of GPU memory used by tensors."""
        return self.torch.cuda.memory_allocated() if self.backend.device == "cuda" else 0


def split(data: np.ndarray, kinds: Sequence[tuple[str, Sequence[int]]]) -> list[np.ndarray]:
    arrays, start = [], 0
    for name, shape in kinds:
        dtype = numpy_dtype(name)
        end = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(data[start:end].view(dtype).reshape(tuple(shape)))
        start = end
    return arrays
