"""A sample's call as a function of tensors, for any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.helpers.frameworks import Backend
from tests.helpers.specification import Sample, Specification


def function_of(
    backend: Backend, spec: Specification, sample: Sample, inputs: Mapping[str, Any], names: Sequence[str]
) -> Callable[..., Any]:
    """The call as a function of the inputs of these names. It returns a tuple only for several outputs."""

    def function(*tensors: Any) -> Any:
        given = {**inputs, **dict(zip(names, tensors, strict=True))}
        outputs = backend.call(spec.name, given, sample.options)
        return outputs if len(outputs) > 1 else outputs[0]

    return function
