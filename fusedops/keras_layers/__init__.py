"""The Keras 3 layers that are made of public functions, for each backend of Keras that `backend.py` lists."""
