"""Trains the network in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import network
import numpy as np
import torch
from data import Digits, accuracy
from in_torch import TorchSide

BATCH = 64


@dataclass(frozen=True)
class Trained:
    parameters: dict[str, np.ndarray]
    losses: list[float]  # per epoch: the mean over its batches
    accuracies: list[float]  # on the test images, after each epoch


def train(side: TorchSide, digits: Digits, epochs: int, report: Callable[[int, float, float], None]) -> Trained:
    """Trains by Adam with cosine decay of the learning rate. Calls `report(epoch, loss, accuracy)` after each epoch."""
    random = np.random.default_rng(0)
    parameters = side.parameters(network.initial_parameters(digits.train_images.shape[1]))
    images, labels = side.tensor(digits.train_images), side.tensor(digits.train_labels)
    optimizer = torch.optim.Adam(parameters.values(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    losses, accuracies = [], []
    for epoch in range(epochs):
        total = torch.zeros((), device=side.device)
        batches = np.array_split(random.permutation(len(images)), len(images) // BATCH)
        for batch in batches:
            index = side.tensor(batch)
            loss = torch.nn.functional.cross_entropy(
                network.logits(side.fused, parameters, images[index]), labels[index]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        schedule.step()
        arrays = {name: parameter.detach().cpu().numpy() for name, parameter in parameters.items()}
        logits = side.logits(side.fused, arrays, digits.test_images, compiled=False)
        losses.append(float(total) / len(batches))
        accuracies.append(accuracy(logits, digits.test_labels))
        report(epoch + 1, losses[-1], accuracies[-1])
    return Trained({name: array.copy() for name, array in arrays.items()}, losses, accuracies)
