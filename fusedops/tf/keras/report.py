"""What `convert` prints of a Keras model."""

from __future__ import annotations

from typing import Any

import keras

from fusedops import report


class Report(report.Report):
    def is_counted(self, thing: Any) -> bool:
        return isinstance(thing, keras.layers.Layer)  # a loss is none

    def is_container(self, thing: Any) -> bool:
        return bool(getattr(thing, "_layers", None)) or isinstance(thing, keras.layers.InputLayer)
