"""TensorFlow only: graphs, XLA, SavedModels, the library without the package."""
