"""torch.nn.Linear with a number of outputs that is no multiple of 8, such as the head of a vocabulary of 50 257.

Rows of 16 bits then begin at any address, for which cuBLAS has slow kernels only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedops.torch import nn
from fusedops.torch.autocast import autocast_dtype

_FEWEST_OUTPUTS = 4096  # of fewer, either takes little time


def is_aligned(layer: torch.nn.Linear) -> bool:
    return layer.out_features % 8 == 0 or layer.out_features < _FEWEST_OUTPUTS


class UnalignedLinear(nn.Linear):
    def why_not(self, *inputs: Any) -> str | None:
        if is_aligned(self):
            return ""
        if not inputs or not isinstance(inputs[0], Tensor):
            return super().why_not(*inputs)
        x = inputs[0]
        if torch.compiler.is_compiling():  # and takes less time than ours
            return "torch.compile pads its rows"
        if not x.is_cuda or (autocast_dtype("cuda") or x.dtype).itemsize > 2:
            return "torch's own product serves as well"
        return super().why_not(*inputs)
