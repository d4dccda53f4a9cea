"""JAX's implementations."""
