"""Calls that bypass `keras.layers.Layer.__call__`, which may take longer than the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from fusedops.keras_layers.backend import own
from fusedops.keras_layers.layer import FusedLayer

_KERAS_CALL = keras.layers.Layer.__call__


def _is_keras_known() -> bool:
    """True if calls of layers are Keras's own, and layers have the attributes that `_is_plain` reads."""
    layer = keras.layers.Layer(name="layer")
    needed = ("_called", "_layers", "_loss_ids", "_losses", "_remat_mode", "built", "input_spec", "quantization_mode")
    # The module of the wrapper, if it is wrapped: a wrapper may copy __name__.
    module = getattr(_KERAS_CALL, "__globals__", {}).get("__name__", "")
    return module.startswith("keras.") and all(hasattr(layer, name) for name in needed)


_KERAS_IS_KNOWN = _is_keras_known()


class DirectLayer(FusedLayer):
    """A layer that calls the kernel directly if Keras's work around `call` would have no effect.

    A subclass has `_fused`, which calls the kernel with tensors of the layer's compute dtype, returns that dtype, and
    reads weights by `parameter`, so that Keras's casts of weights do not matter.
    """

    _arity: ClassVar[int] = 1  # the number of input tensors
    _known_call: ClassVar[Any] = None  # the `call` that `_fused` replaces

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._known_call = cls.call if "_fused" in vars(cls) else None  # a subclass's `call` may compute anything

    def _fused(self, *inputs: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pair = self._arity == 2 and len(args) == 1 and isinstance(args[0], (list, tuple))
        inputs = args[0] if pair else args
        if not kwargs and self._is_plain() and self._are_plain(inputs) and self.why_not(inputs[0]) is None:
            try:
                return self._fused(*inputs)
            except (*own.ERRORS, TypeError, ValueError):
                pass  # invalid input: Keras gets the same error, and adds the layer and its inputs
        return super().__call__(*args, **kwargs)

    def _is_plain(self) -> bool:
        """True if Keras would only call this layer, and check and convert its inputs."""
        return (
            _KERAS_IS_KNOWN
            # Calls are not wrapped, neither those of all layers nor those of this one.
            and keras.layers.Layer.__call__ is _KERAS_CALL
            and type(self).call is type(self)._known_call
            and vars(self).keys().isdisjoint(("call", "compute_mask"))
            # It is built, with a path and a name scope, which Keras sets in the first call.
            and self._called
            and self.built
            and not self.input_spec
            # No other way to compute it is selected.
            and self.quantization_mode is None
            and self._remat_mode is None
            and keras.distribution.distribution() is None
            # No losses that an outermost call would clear.
            and self.activity_regularizer is None
            and not (self._losses or self._loss_ids or self._layers)
        )

    def _are_plain(self, inputs: Sequence[Any]) -> bool:
        """True if Keras would pass these inputs on unchanged.

        In eager code, no operation takes the layer's name, and no node of a model is made.
        """
        return len(inputs) == self._arity and own.are_eager(inputs, self.compute_dtype)
