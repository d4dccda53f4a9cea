"""The public functions of fusedops.torch: those of fusedops/functions/ over torch's operators and tensors.

The build writes their types, for editors and type checkers, into functions.pyi.
"""

from __future__ import annotations

from torch import Tensor

from fusedops.functions import define
from fusedops.torch import expressions
from fusedops.torch.errors import renamed
from fusedops.torch.operators import OPERATORS
from fusedops.torch.randomness import seed_of
from fusedops.torch.recording import may_need_gradient
from fusedops.torch.sequences import check_whole_sequences

__all__ = define(
    globals(),
    Tensor=Tensor,
    TensorLike=Tensor,
    Variable=Tensor,
    ops=OPERATORS,
    own=expressions,
    check_whole_sequences=check_whole_sequences,
    may_need_gradient=may_need_gradient,
    renamed=renamed,
    seed_of=seed_of,
)
