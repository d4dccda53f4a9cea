"""Activation functions."""
# mypy: ignore-errors

from __future__ import annotations

import torch

from fusedops.torch.conversion.hf.forms import Form


class QuickGELU(Form, mixin="activations.QuickGELU"):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)
