"""Training steps of a PyTorch model that is converted between two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def losses_of_steps(
    model: Any, loss_of: Callable[[int], torch.Tensor], steps: int, lr: float, convert: Callable[[Any], Any] | None
) -> list[float]:
    """The loss of each AdamW step; before the sixth, `convert` changes the model, and the optimizer stays.

    Args:
        model: the loss of step i is `loss_of(i)`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    found = []
    for step in range(steps):
        if convert and step == 5:
            convert(model)
        loss = loss_of(step)
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found
