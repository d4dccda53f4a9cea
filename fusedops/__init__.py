"""One set of fused kernels for PyTorch (`import fusedops.torch`) and TensorFlow (`import fusedops.tf`)."""

__version__ = "0.1.0"

from fusedops.config import show_config

__all__ = ["__version__", "show_config"]
