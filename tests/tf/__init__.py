"""What is TensorFlow's alone: graphs, XLA, SavedModels, the library without the package."""
