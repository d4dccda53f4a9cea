"""TensorFlow's contenders."""
