"""Trains the model in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import model
import numpy as np
import torch
from data import Text, windows
from in_torch import TorchSide

BATCH = 16
TESTS = 20  # evaluations during training
LEARNING_RATE = 4e-3


@dataclass(frozen=True)
class Trained:
    parameters: dict[str, np.ndarray]
    losses: list[float]  # per step, in nats per character
    test_losses: list[tuple[int, float]]  # (step, loss on the test text)


def train(side: TorchSide, text: Text, steps: int, report: Callable[[int, float, float], None]) -> Trained:
    """Trains by AdamW, with linear warm-up over a twentieth of the steps and cosine decay of the learning rate."""
    random = np.random.default_rng(0)
    parameters = side.parameters(model.initial_parameters(len(text.alphabet)))
    matrices = [p for p in parameters.values() if p.dim() == 2]
    vectors = [p for p in parameters.values() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=(0.9, 0.98),
    )
    warmup = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * np.cos(np.pi * step / steps))
    )
    losses = []
    test_losses = []
    for step in range(1, steps + 1):
        starts = random.integers(0, len(text.train) - model.CONTEXT, size=BATCH)
        tokens, labels = map(side.tensor, windows(text.train, starts, model.CONTEXT))
        loss = side.fused.cross_entropy(side.logits(side.fused, parameters, tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % (steps // TESTS) == 0:
            test_losses.append((step, test_loss(side, parameters, text)))
            report(step, float(losses[-1]), test_losses[-1][1])
    arrays = {name: parameter.detach().cpu().numpy().copy() for name, parameter in parameters.items()}
    return Trained(arrays, torch.stack(losses).tolist(), test_losses)


@torch.no_grad()
def test_loss(side: TorchSide, parameters: dict[str, torch.Tensor], text: Text) -> float:
    """The loss on 64 fixed windows of the test text."""
    starts = np.linspace(0, len(text.test) - model.CONTEXT - 1, 64).astype(int)
    tokens, labels = map(side.tensor, windows(text.test, starts, model.CONTEXT))
    return float(side.fused.cross_entropy(side.logits(side.fused, parameters, tokens), labels))
