"""fusedops.torch.jit.load(), the build at run time. Without a build, use it through `import fusedops`."""

from fusedops.building.jit import load

__all__ = ["load"]
