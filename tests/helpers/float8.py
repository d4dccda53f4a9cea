"""Results in 8 bits with scales: expected values, from the specifications of the unquantized operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.helpers.numerics import compute_dtype, reference_dtype, tolerance
from tests.helpers.specification import Sample, Specification

Array = np.ndarray

FORMATS = ("float8_e4m3fn", "float8_e5m2")
SCALINGS = ("tensor", "row", "block")
BLOCK = 128
NAN = 0x7F

# Public function -> its signature.
SIGNATURES = {
    "rms_norm_float8": "(x, weight=None, *, eps=1e-06, weight_offset=0.0, scale=None, scaling='row', "
    "dtype='float8_e4m3fn')",
    "add_rms_norm_float8": "(x, residual, weight=None, *, eps=1e-06, weight_offset=0.0, scale=None, scaling='row', "
    "dtype='float8_e4m3fn')",
    "layer_norm_float8": "(x, weight=None, bias=None, *, eps=1e-05, scale=None, scaling='row', dtype='float8_e4m3fn')",
    "bias_act_float8": "(x, bias=None, activation='gelu', *, scale=None, scaling='row', dtype='float8_e4m3fn')",
    "gated_act_float8": "(gate, up=None, activation='silu', *, scale=None, scaling='row', dtype='float8_e4m3fn')",
}


def unquantized_name(name: str) -> str:
    """The unquantized function."""
    return name.removesuffix("_float8")


def numbers(kind: str) -> Array:
    """The finite non-negative numbers, ascending: the i-th has the code i."""
    values = np.arange(NAN + 1, dtype=np.uint8).view(getattr(ml_dtypes, kind)).astype(np.float64)
    return values[np.isfinite(values)]


def codes(values: Array, kind: str) -> Array:
    """Rounds once to nearest even, and saturates at the largest number; NaN has one code."""
    known = numbers(kind)
    middles = (known[1:] + known[:-1]) / 2  # exact: one bit more than a number has
    size = np.abs(values)
    found = np.searchsorted(middles, size, side="left").astype(np.uint8)  # the lower one of two equally near neighbours
    tie = (found < len(middles)) & (middles[np.minimum(found, len(middles) - 1)] == size)
    found = found + (tie & (found % 2 == 1)).astype(np.uint8)
    found = found | (np.signbit(values).astype(np.uint8) << 7)
    return np.where(np.isnan(values), np.uint8(NAN), found)


def values_of(y: Array) -> Array:
    return y.astype(np.float64)


def bytes_of(y: Array) -> Array:
    return y.view(np.uint8)


def over_scales(values: Array, scaling: str, reduce: Any) -> Array:
    """One number per scale: `reduce` of the values that share it, in the shape of scales."""
    if scaling == "tensor":
        return np.asarray(reduce(values.reshape(-1), 0))
    if scaling == "row":
        return reduce(values, -1)[..., None]
    columns = values.shape[-1]
    blocks = [reduce(values[..., i : i + BLOCK], -1) for i in range(0, columns, BLOCK)]
    return np.stack(blocks, -1) if blocks else np.zeros((*values.shape[:-1], 0), values.dtype)


def spread(scales: Array, shape: tuple[int, ...], scaling: str) -> Array:
    """The scale of each element."""
    if scaling == "block":
        return np.repeat(scales, BLOCK, -1)[..., : shape[-1]]
    return np.broadcast_to(np.reshape(scales, ()) if scaling == "tensor" else scales, shape)


def largest(values: Array, axis: int) -> Array:
    """The largest absolute value; NaN does not count, and empty slices give zero."""
    return np.fmax.reduce(np.abs(values), axis, initial=0.0)


def scales_of(values: Array, scaling: str, kind: str, dtype: Any) -> Array:
    """The scales of these values, in their dtype."""
    dtype = np.dtype(dtype)
    fitting = over_scales(values.astype(dtype), scaling, largest) / dtype.type(numbers(kind)[-1])
    return np.maximum(fitting.astype(dtype), np.finfo(dtype).tiny)


@dataclass(frozen=True)
class Range:
    """The range in which a correct kernel's values lie before scaling."""

    low: Array
    high: Array

    @property
    def smallest(self) -> Array:
        """The smallest absolute value in the range."""
        return np.where(self.low * self.high <= 0, 0, np.minimum(np.abs(self.low), np.abs(self.high)))

    @property
    def greatest(self) -> Array:
        return np.maximum(np.abs(self.low), np.abs(self.high))


def exact_range(spec: Specification, inputs: Mapping[str, Any], options: Mapping[str, Any], dtype: str) -> Range:
    def first(result: Any) -> Array:
        return result[0] if isinstance(result, tuple) else result

    exact, magnitude = first(spec.reference(**inputs, **options)), first(spec.magnitude(**inputs, **options))
    roundings = spec.roundings(**inputs, **options)["y"]
    storage = (spec.storage_roundings(**inputs, **options).get("y", 0), dtype)
    error = tolerance(exact, np.broadcast_to(magnitude, exact.shape), roundings, compute_dtype(dtype), storage)
    return Range(exact - error, exact + error)


def assert_quantized(found: Range, y: Array, scales: Array, given: Array | None, scaling: str, kind: str) -> None:
    """y and the scales belong to some values in the range."""
    slack = float(np.finfo(scales.dtype).eps)  # the scale is rounded once
    tiny = float(np.finfo(scales.dtype).tiny)
    if given is None:
        limit = numbers(kind)[-1]
        least, most = (over_scales(x, scaling, largest) / limit for x in (found.smallest, found.greatest))
        assert scales.shape == least.shape
        wide = scales.astype(found.low.dtype)
        assert (np.maximum(least, tiny) * (1 - slack) <= wide).all()
        assert (wide <= np.maximum(most, tiny) * (1 + slack)).all()
    else:
        np.testing.assert_array_equal(scales, given)
    of_each = spread(scales.astype(found.low.dtype), y.shape, scaling)
    low, high = found.low / of_each, found.high / of_each
    known = values_of(y)
    assert (values_of(codes(low, kind).view(y.dtype)) <= known).all()
    assert (known <= values_of(codes(high, kind).view(y.dtype))).all()


def float8_call(
    backend: Any, spec: Specification, sample: Sample, dtype: str, kind: str = FORMATS[0], **options: Any
) -> tuple[Any, ...]:
    """The outputs of the function with 8-bit results; `scale` is an array."""
    if options.get("scale") is not None:
        options["scale"] = backend.from_numpy(options["scale"])
    inputs = {name: x for name, x in backend.tensors(sample, dtype).items() if name not in ("dropout", "seed")}
    return backend.call(f"{spec.name}_float8", inputs, {**sample.options, **options, "dtype": kind})


def arrays(backend: Any, outputs: tuple[Any, ...]) -> list[Array]:
    return [backend.to_numpy(x) for x in outputs]


def reference_inputs(backend: Any, sample: Sample, dtype: str) -> dict[str, Any]:
    return backend.numpy(backend.tensors(sample, dtype), reference_dtype(dtype))
