"""PyTorch behind the examples' interface: tensors from numpy arrays, on one device."""

from __future__ import annotations

from collections.abc import Mapping

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

    def wait(self) -> None:
        """Waits for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()
