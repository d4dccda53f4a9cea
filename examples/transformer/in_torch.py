"""PyTorch's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import model
import numpy as np
import plain_torch
import torch
from common.torch_side import Side

SHAPES = SimpleNamespace(
    gather=lambda table, tokens: torch.nn.functional.embedding(tokens, table),
    reshape=torch.reshape,
    split=torch.chunk,
)


class TorchSide(Side):
    plain = plain_torch

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.angles = tuple(map(self.tensor, model.angles()))

    def logits(self, fo: Any, parameters: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        return model.logits(fo, SHAPES, parameters, self.angles, tokens)

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """A function from tokens to logits."""
        parameters = self.parameters(arrays)

        @torch.no_grad()
        def predict(tokens: np.ndarray) -> np.ndarray:
            return self.logits(fo, parameters, self.tensor(tokens)).cpu().numpy()

        return predict

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""
        parameters = self.parameters(arrays)
        x, y = self.tensor(tokens), self.tensor(labels)

        def step() -> Any:
            loss = fo.cross_entropy(self.logits(fo, parameters, x), y)
            return torch.autograd.grad(loss, list(parameters.values()))

        return step
