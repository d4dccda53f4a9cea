"""PyTorch only: autograd, transforms, compilation, layers, `convert`."""
