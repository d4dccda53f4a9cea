"""Whether a call is recorded for a backward."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import record


def may_need_gradient(*_: Any) -> bool:
    """Whether a tape is open, which in a graph is one of the function that is traced. A function that was traced
    without a tape and is differentiated as a whole does without what would have been kept."""
    return bool(record.could_possibly_record())


def is_watched(tensor: Any) -> bool:
    """Whether a tape will ask for the gradient of what is computed of the tensor."""
    return bool(record.should_record_backprop([tensor]))
