"""The base of the counterparts of KerasHub's layers."""

from __future__ import annotations

from typing import Any, ClassVar

from fusedops.tf.keras.layer import FusedLayer


class HubLayer(FusedLayer):
    """A layer of KerasHub's with faster methods."""

    needs: ClassVar[tuple[str, ...]] = ()  # attributes of the layer, beside those of every layer, that the methods read

    def why_not(self, inputs: Any = None) -> str | None:
        if not self.built:  # its own layers are made when it is built, and could not be converted yet
            return "not built yet: call the model once, then convert it"
        return self._lacks()

    def _lacks(self) -> str | None:
        missing = [name for name in self.needs if not hasattr(self, name)]
        return f"this version of KerasHub's has no attribute {missing[0]}" if missing else None
