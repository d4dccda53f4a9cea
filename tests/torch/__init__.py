"""What is PyTorch's alone: autograd, transforms, compilation, layers, `convert`."""
