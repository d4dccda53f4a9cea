"""fusedops for PyTorch: `import fusedops.torch as fo`.

The functions of `fusedops.functions` over torch's tensors. They are differentiable to any order, in reverse and forward
mode, and work under torch.compile, torch.export, torch.func, autocast and CUDA graphs. The bare operators are
`torch.ops.fusedops.<name>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops import lazy, loading

loading.library("torch")  # raises a helpful error before torch is imported

from torch.fx import wrap as _wrap  # noqa: E402

from fusedops.torch import functions  # noqa: E402
from fusedops.torch.functions import *  # noqa: E402, F403
from fusedops.torch.operators import OPERATORS as ops  # noqa: E402, F401

if TYPE_CHECKING:
    from fusedops.torch import distributed as distributed
    from fusedops.torch import jit as jit
    from fusedops.torch import nn as nn
    from fusedops.torch import optim as optim
    from fusedops.torch.capturing import graphed as graphed
    from fusedops.torch.conversion import convert as convert
    from fusedops.torch.conversion import revert as revert
    from fusedops.torch.explaining import explain as explain
    from fusedops.torch.libraries import load as load

for _name in functions.__all__:
    _wrap(_name)  # torch.fx records `fo.<name>` as one node

_LAZY = {
    "convert": "fusedops.torch.conversion",
    "distributed": "fusedops.torch.distributed",
    "explain": "fusedops.torch.explaining",
    "graphed": "fusedops.torch.capturing",
    "jit": "fusedops.torch.jit",
    "load": "fusedops.torch.libraries",
    "nn": "fusedops.torch.nn",
    "optim": "fusedops.torch.optim",
    "revert": "fusedops.torch.conversion",
}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = lazy.members(__name__, _LAZY)

__all__ = ["convert", "explain", "graphed", "load", "revert"]
__all__ += functions.__all__


# These modules of torch and transformers take long to import.
lazy.import_with("torch.distributed.tensor", "fusedops.torch.distributed.strategies")
lazy.import_with("torch.utils.flop_counter", "fusedops.torch.flops")
lazy.import_with("transformers.integrations.moe", "fusedops.torch.conversion.hf.registered_experts")


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, "ops"})
