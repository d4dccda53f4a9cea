"""PyTorch's side: the model's logits and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import plain_torch
import torch
from common.torch_side import Side
from model import ModelSide


class TorchSide(ModelSide, Side):
    plain = plain_torch
    shapes = SimpleNamespace(
        gather=lambda table, tokens: torch.nn.functional.embedding(tokens, table),
        reshape=torch.reshape,
        split=torch.chunk,
    )

    def predictor(
        self, fo: Any, arrays: Mapping[str, np.ndarray], compiled: bool
    ) -> Callable[[np.ndarray], np.ndarray]:
        """A function from tokens to logits."""
        parameters = self.parameters(arrays)

        @torch.no_grad()
        def predict(tokens: np.ndarray) -> np.ndarray:
            return self.logits(fo, parameters, self.tensor(tokens)).cpu().numpy()

        return predict
