"""TensorFlow's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import tensorflow as tf
from plain import axpby as axpby
from plain import polynomial_activation as polynomial_activation

add = tf.add
matmul = tf.linalg.matmul
relu = tf.nn.relu
scale = tf.multiply
