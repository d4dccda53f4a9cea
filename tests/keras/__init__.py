"""The Keras layers, and `convert` of Keras's and KerasHub's models."""
