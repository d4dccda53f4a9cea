"""PyTorch's contenders."""
