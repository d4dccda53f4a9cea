"""JAX only: seeds, transforms, maps, sharded calls, optimizers, layers."""
