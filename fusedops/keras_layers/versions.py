"""The versions and the backends of Keras that the layers support. Only the functions import Keras here."""

from __future__ import annotations

from fusedops import loading

OLDEST, NEWEST = "3.12", "3.15"  # tested; newer versions are not refused
PACKAGES = {"tensorflow": "fusedops.tf", "jax": "fusedops.jax"}  # by Keras's backend
_TITLES = {"tensorflow": "TensorFlow", "jax": "JAX"}


def require(package: str, *backends: str) -> None:
    """Raises an error unless Keras 3 runs over one of these backends, whose tensors the layers of a package take."""
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise ImportError(
            f"{package} needs Keras {OLDEST} or newer, which is not installed. Run: pip install keras"
        ) from error
    if not loading.at_least(keras.__version__, OLDEST):
        raise ImportError(
            f"{package} needs Keras {OLDEST} or newer, and Keras {keras.__version__} is installed. "
            "Run: pip install -U keras"
        )
    if keras.backend.backend() not in backends:
        raise ImportError(
            f"{package} needs Keras's {' or '.join(map(_TITLES.__getitem__, backends))} backend; it runs on "
            f"{keras.backend.backend()}. Set KERAS_BACKEND={backends[0]} before TensorFlow or Keras is imported"
        )


def unknown(error: ImportError) -> ImportError:
    """The error for a Keras whose private modules have changed."""
    import keras

    return ImportError(
        f"{PACKAGES[keras.backend.backend()]}.keras was tested with Keras {OLDEST} to {NEWEST}, and Keras "
        f"{keras.__version__}, which is installed, lacks something that it needs: {error}. "
        f"Run: pip install 'keras=={NEWEST}.*'"
    )
