"""PyTorch's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import torch
from plain import axpby as axpby
from plain import polynomial_activation as polynomial_activation

add = torch.add
matmul = torch.matmul
relu = torch.relu
scale = torch.mul
