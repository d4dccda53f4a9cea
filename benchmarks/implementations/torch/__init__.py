"""PyTorch's implementations."""
