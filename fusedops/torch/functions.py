"""The public functions of fusedops.torch: those of fusedops/functions/, bound to torch's operators and tensors.

The build writes their types into functions.pyi.
"""

from __future__ import annotations

from torch import Tensor

from fusedops.functions import define
from fusedops.torch import expressions
from fusedops.torch.errors import renamed
from fusedops.torch.operators import OPERATORS as ops
from fusedops.torch.randomness import seed_of
from fusedops.torch.recording import may_keep_gradient, may_need_gradient
from fusedops.torch.sequences import integers_of, ring_of_context

TensorLike = Variable = Tensor

__all__ = define(globals())
