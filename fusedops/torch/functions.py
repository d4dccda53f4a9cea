"""The public functions over torch's tensors; their types are in functions.pyi, which `make stubs` writes."""

from typing import TYPE_CHECKING

from torch import Tensor  # noqa: F401

from fusedops.functions import public
from fusedops.torch.front import FUNCTIONS as ops  # noqa: F401

if TYPE_CHECKING:
    from fusedops.functions import *  # noqa: F403  where editors find descriptions

globals().update(_public := public(globals()))
__all__ = list(_public)
