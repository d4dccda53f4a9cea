"""PyTorch behind the examples' interface: tensors from numpy arrays, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import fusedops.torch


class Side:
    """Base class. An example's subclass adds the functions to compare, and `plain`, torch's own operators."""

    title = "PyTorch"
    fused = fusedops.torch
    compiled = (False,)

    def __init__(self, device: str) -> None:
        self.device = {"GPU": "cuda", "CPU": "cpu"}[device]

    @staticmethod
    def has_gpu() -> bool:
        return torch.cuda.is_available()

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(self.device)

    def parameters(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return {name: self.tensor(array).requires_grad_() for name, array in arrays.items()}

    def step_of(self, loss: Callable[..., Any], parameters: Any, x: Any, y: Any, compiled: bool) -> Callable[[], Any]:
        """Forward and backward of loss(parameters, x, y), to be timed."""
        return lambda: torch.autograd.grad(loss(parameters, x, y), list(parameters.values()))

    def wait(self) -> None:
        """Waits for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()
