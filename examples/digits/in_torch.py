"""PyTorch's side: the network's logits, gradients and training steps as functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import network
import numpy as np
import plain_torch
import torch
from common.torch_side import Side


class TorchSide(Side):
    plain = plain_torch

    def logits(self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, compiled: bool) -> np.ndarray:
        with torch.no_grad():
            return network.logits(fo, self.parameters(arrays), self.tensor(images)).cpu().numpy()

    def upstream(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The gradient of the loss with respect to the logits."""
        leaf = torch.from_numpy(logits).requires_grad_()
        loss = torch.nn.functional.cross_entropy(leaf, torch.from_numpy(labels))
        return torch.autograd.grad(loss, leaf)[0].numpy()

    def gradients(
        self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, upstream: np.ndarray, compiled: bool
    ) -> dict[str, np.ndarray]:
        """The gradients of the parameters for an upstream gradient of the logits."""
        parameters = self.parameters(arrays)
        logits = network.logits(fo, parameters, self.tensor(images))
        gradients = torch.autograd.grad(logits, list(parameters.values()), self.tensor(upstream))
        return {name: gradient.cpu().numpy() for name, gradient in zip(parameters, gradients, strict=True)}

    def step(
        self, fo: Any, arrays: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray, compiled: bool
    ) -> Callable[[], Any]:
        """Forward and backward of the loss, to be timed."""

        def loss(parameters: Mapping[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(network.logits(fo, parameters, x), y)

        return self.step_of(loss, self.parameters(arrays), self.tensor(images), self.tensor(labels), compiled)

    def axpby(self, fo: Any, x: np.ndarray, b: np.ndarray, compiled: bool, backward: bool) -> Callable[[], Any]:
        """One large a·x + b, with or without its gradients, to be timed."""
        a = torch.full((1,), 0.5, device=self.device)
        tensors = [a, self.tensor(x), self.tensor(b)]
        if not backward:
            return lambda: fo.axpby(*tensors)
        upstream = torch.ones_like(tensors[1])
        for tensor in tensors:
            tensor.requires_grad_()
        return lambda: torch.autograd.grad(fo.axpby(*tensors), tensors, upstream)
