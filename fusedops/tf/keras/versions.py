"""The versions of Keras that the layers support. Only `require` imports Keras here."""

from __future__ import annotations

from fusedops import loading

OLDEST, NEWEST = "3.12", "3.15"  # tested; newer versions are not refused


def require() -> None:
    """Raises an error unless Keras 3 runs over TensorFlow: the layers take and return TensorFlow's tensors."""
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise ImportError(
            f"fusedops.tf.keras needs Keras {OLDEST} or newer, which is not installed. Run: pip install keras"
        ) from error
    if not loading.at_least(keras.__version__, OLDEST):
        raise ImportError(
            f"fusedops.tf.keras needs Keras {OLDEST} or newer, and Keras {keras.__version__} is installed. "
            "Run: pip install -U keras"
        )
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"fusedops.tf.keras needs Keras's TensorFlow backend; it runs on {keras.backend.backend()}. "
            "Set KERAS_BACKEND=tensorflow before TensorFlow or Keras is imported"
        )


def unknown(error: ImportError) -> ImportError:
    """The error for a Keras whose private modules have changed."""
    import keras

    return ImportError(
        f"fusedops.tf.keras was tested with Keras {OLDEST} to {NEWEST}, and Keras {keras.__version__}, which is "
        f"installed, lacks something that it needs: {error}. Run: pip install 'keras=={NEWEST}.*'"
    )
