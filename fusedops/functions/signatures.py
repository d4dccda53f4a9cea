"""What a public function looks like in each framework: where it is called, and in what type checkers read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any


def signature(function: Callable[..., Any], framework: str) -> inspect.Signature:
    """The function's own; TensorFlow's functions take all that is made a tensor of, and a name for its operations."""
    own = inspect.signature(function)
    if framework != "tf":
        return own
    parameters = [
        p.replace(annotation=re.sub(r"\bTensor\b", "TensorLike", p.annotation)) for p in own.parameters.values()
    ]
    name = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    return own.replace(parameters=[*parameters, name])
