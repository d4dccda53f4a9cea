"""fusedops for PyTorch: `import fusedops.torch as fo`.

The functions are differentiable to any order, in reverse and forward mode, and work under torch.compile, torch.export,
torch.func, autocast and CUDA graphs. The bare operators are `torch.ops.fusedops.<name>`.
"""

from __future__ import annotations

from fusedops import functions
from fusedops.functions import bind
from fusedops.torch.front import FUNCTIONS

axpby = bind(functions.axpby, FUNCTIONS)
add = bind(functions.add, FUNCTIONS)
scale = bind(functions.scale, FUNCTIONS)
relu = bind(functions.relu, FUNCTIONS)
polynomial_activation = bind(functions.polynomial_activation, FUNCTIONS)
matmul = bind(functions.matmul, FUNCTIONS)

__all__ = [function.__name__ for function in functions.PUBLIC]
