"""TensorFlow's implementations."""
