"""What is taken from Keras's own modules, because it is not part of what Keras promises to keep."""

from fusedops.tf.keras import versions

try:
    from keras.src.backend import AutocastScope, get_keras_mask, set_keras_mask
    from keras.src.losses.loss import reduce_weighted_values
except ImportError as error:
    raise versions.unknown(error) from error

__all__ = ["AutocastScope", "get_keras_mask", "reduce_weighted_values", "set_keras_mask"]
