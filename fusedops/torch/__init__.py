"""fusedops for PyTorch: `import fusedops.torch as fo`.

The functions of `fusedops.functions` over torch's tensors. They are differentiable to any order, in reverse and forward
mode, and work under torch.compile, torch.export, torch.func, autocast and CUDA graphs. The bare operators are
`torch.ops.fusedops.<name>`.
"""

from __future__ import annotations

from fusedops import functions, loading

loading.library("torch")  # says what is missing before torch is imported

from fusedops.torch.front import FUNCTIONS  # noqa: E402

globals().update({function.__name__: functions.bind(function, FUNCTIONS) for function in functions.PUBLIC})

__all__ = [function.__name__ for function in functions.PUBLIC]
