"""Rotary embedding in an attention whose other code does not change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch

import fusedops.torch as fo
from fusedops.conversion import UnknownClass
from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf import normed_rotary
from fusedops.torch.conversion.hf.code import with_global, with_parameters, with_prepared_input, without_no_grad
from fusedops.torch.conversion.hf.forms.rotary import KNOWN, Rotation
from fusedops.torch.conversion.hf.layer import HFLayer, stays_half
from fusedops.torch.internals import may_carry, shape, stream_of
from fusedops.torch.nn.layer import is_left_to_compiler, is_mixed, is_plain, unfused_input

_ANGLES = "_fusedops_angles"  # the attribute of a table of angles with its converted copy


class RotaryAttention(HFLayer):
    """Attention whose `forward` is a copy of the original's code that calls our rotary embedding."""

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        return {"forward": with_kernel(kind, kind.forward)}  # type: ignore[attr-defined]

    def unfused(self) -> str | None:
        return None if any(rotations(self.original)) else "its forward calls no rotary embedding that is known"


def with_kernel(kind: type, forward: Any) -> Any:
    """A copy of a forward of the class that calls our rotary embedding.

    Raises:
        UnknownClass: the class has no rotary embedding that is known.
    """
    forward, decorate = without_no_grad(forward)
    found = list(rotations(kind))
    if not found:
        raise UnknownClass("its forward calls no rotary embedding that is known")
    original = forward
    for name, rotation in found:
        plain = forward.__globals__[name]
        forward = with_global(forward, name, fused(plain, rotation))
        if made := normed_rotary.with_norms(forward, name):
            read, rotate = _reader(plain, rotation), _Rotate(rotation)
            value = normed_rotary.fused(read, rotate, forward.__globals__[name])
            forward = with_global(made, normed_rotary.NAME, value)
    return decorate(with_prepared_input(forward, original))


def rotations(kind: type) -> Iterator[tuple[str, Rotation]]:
    """(global name, rotation) for each known rotary function that a class's forward calls."""
    forward, _ = without_no_grad(vars(kind).get("forward"))
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        return
    for name in forward.__code__.co_names:
        rotation = _rotation(forward.__globals__.get(name))
        if rotation:
            yield name, rotation


def unknown_rotation(kind: type) -> str | None:
    """The reason why a function with "rotary" in its name in a class's forward is not recognized, or None."""
    forward, _ = without_no_grad(vars(kind).get("forward"))
    names = forward.__code__.co_names if isinstance(forward, FunctionType) else ()
    for name in names:
        function = forward.__globals__.get(name)
        if "rotary" not in name or not isinstance(function, FunctionType):
            continue
        try:
            code = source.of_function(function)
        except source.NoSource as reason:
            return str(reason)
        nearest = max(_known(), key=functools.partial(source.shared, code))
        return f"its {name} differs from {_known()[nearest].like}'s {source.difference(code, nearest)}"
    return None


def _rotation(function: Any) -> Rotation | None:
    if not isinstance(function, FunctionType) or str(function.__module__).partition(".")[0] == "torch":
        return None
    try:
        return _known().get(source.of_function(function, _longest()))
    except (source.NoSource, source.TooLong):
        return None


@functools.cache
def _longest() -> int:
    return max(len(code.tokens) for code in _known())


@functools.cache
def _known() -> dict[source.Code, Rotation]:
    return {source.of_function(function): rotation for function, rotation in KNOWN.items()}


def fused(plain: FunctionType, rotation: Rotation | None = None) -> Callable[..., Any]:
    """A fused equivalent of a known function, which calls it for inputs that the kernel does not support."""
    rotation = rotation or _rotation(plain)
    assert rotation, f"{plain.__name__} is not known"
    read, rotate = _reader(plain, rotation), _Rotate(rotation)

    @functools.wraps(plain)
    def apply(*args: Any, **kwargs: Any) -> Any:
        call = read(*args, **kwargs)
        if call and all(map(is_left_to_compiler, call[0])):
            return plain(*args, **kwargs)
        rotated = rotate(*call[:-1]) if call else None
        return plain(*args, **kwargs) if rotated is None else call[-1](*rotated)

    return apply


def _reader(plain: FunctionType, rotation: Rotation) -> FunctionType:
    return with_parameters(_CALLS[rotation.call], plain)


class _Rotate:
    """Rotates tensors with the kernel, all or none of them."""

    def __init__(self, rotation: Rotation) -> None:
        self.rotation = rotation
        self.is_checked = self.has_unequal_copies = False  # of the angles

    def __call__(
        self, tensors: Sequence[Any], cos: Any, sin: Any, unsqueeze_dim: int = 1, norms: Sequence[Any] | None = None
    ) -> tuple[torch.Tensor, ...] | None:
        """The rotated tensors, or None if the kernel does not support them. `norms` are those of the tensors before.

        Tensors are [B, H, T, D], or [B, T, H, D] for unsqueeze_dim 2. Angles are [1 or B, T, …].
        """
        if unsqueeze_dim not in (1, 2):
            return None
        for x in tensors:
            if not self._fits(x, cos, 3 - unsqueeze_dim):
                return None
        if not self._has_two_copies(cos, sin):
            return None
        cos, sin = self._angles(cos), self._angles(sin)
        if self.rotation.opposite:
            sin = -sin
        kernels = [fo.rope] * len(tensors) if norms is None else [norm.fused_rope for norm in norms]
        pairs = zip(kernels, tensors, strict=True)
        return tuple(self._rotated(kernel, x, cos, sin, unsqueeze_dim) for kernel, x in pairs)

    def _rotated(
        self, rope: Callable[..., Any], x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int
    ) -> Any:
        """Keeps x's memory layout, mostly [B, T, H, D] from a product, so that no product needs a copy."""
        interleaved = self.rotation.interleaved
        if unsqueeze_dim == 2:
            return rope(x, cos, sin, interleaved=interleaved)
        if x.stride(1) > x.stride(2) or shape(x)[2] == 1:  # both layouts of one position are the same memory
            return rope(x, cos, sin, seq_dim=-2, interleaved=interleaved)
        return rope(x.transpose(1, 2), cos, sin, interleaved=interleaved).transpose(1, 2)

    def _fits(self, x: torch.Tensor, cos: torch.Tensor, position: int) -> bool:
        """True if the kernel supports x and cos. It has no gradient of the angles."""
        if x.dim() != 4 or cos.dim() != 3 or cos.requires_grad or not _is_taken(x):
            return False
        size, angles = x.shape, cos.shape
        if angles[1] != size[position] or angles[0] not in (1, size[0]):
            return False
        count = angles[2] * (2 if self.rotation.angles == "once" else 1)  # of rotated features
        if count > size[3] or (count < size[3] and not self.rotation.partial) or count % 2:
            return False
        if cos.dtype is x.dtype:
            return True
        return is_mixed(x, cos) if self.rotation.has_input_dtype else stays_half(x, cos)

    def _angles(self, table: torch.Tensor) -> torch.Tensor:
        """Converts [1, T, …] or [B, T, …] to [T, R/2] or [B, T, R/2], once for all layers that get this table."""
        if not is_plain(table) or not may_carry(table):
            return self._halved(table)
        state = id(table), self.rotation.angles, table._version, stream_of(table)
        kept = table.__dict__.get(_ANGLES)
        if kept is None or kept[0] != state:
            kept = table.__dict__[_ANGLES] = state, self._halved(table)
        return kept[1]

    def _halved(self, table: torch.Tensor) -> torch.Tensor:
        """A copy, since a view that the table carries would keep its memory forever."""
        if self.rotation.angles == "pairs":
            table = table[..., ::2]
        elif self.rotation.angles != "once":
            table = table[..., : table.shape[-1] // 2]
        table = table.clone(memory_format=torch.contiguous_format)
        return table[0] if table.shape[0] == 1 else table

    def _has_two_copies(self, cos: torch.Tensor, sin: torch.Tensor) -> bool:
        """True if each angle is present twice, as far as the rotation requires it.

        Only the first tensors whose values can be read are checked, since that waits for the GPU.
        """
        if self.rotation.angles not in ("halves", "pairs"):
            return True
        # Compiled code must not depend on `is_checked`, which changes.
        if not torch.compiler.is_compiling() and not self.is_checked and _has_values(cos):
            self.has_unequal_copies = not (self._is_twice(cos) and self._is_twice(sin))
            self.is_checked = self.has_unequal_copies or bool(sin.any())  # at position 0 all tables are equal
        return not self.has_unequal_copies

    def _is_twice(self, table: torch.Tensor) -> bool:
        if self.rotation.angles == "pairs":
            return torch.equal(table[..., ::2], table[..., 1::2])
        return torch.equal(*table.chunk(2, dim=-1))


def _is_taken(x: torch.Tensor) -> bool:
    return (is_plain(x) and x.is_floating_point()) or not unfused_input(x)


def _has_values(x: torch.Tensor) -> bool:
    """True if values can be read: not those of traced or mapped tensors, nor during capture of a CUDA graph."""
    is_plain = type(x) is torch.Tensor and not x.is_meta and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    return is_plain and not torch.jit.is_tracing() and not (x.is_cuda and torch.cuda.is_current_stream_capturing())


# Each function in `_CALLS` returns the arguments of `_Rotate.__call__` and a function from the rotated tensors to the
# result, or None for an unsupported call. `with_parameters` renames its parameters to those of a model.
_Call = tuple[Sequence[Any], Any, Any, int, Callable[..., Any]]


def _all(*rotated: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return rotated


def _only(rotated: torch.Tensor) -> torch.Tensor:
    return rotated


def _pair(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> _Call:
    return (q, k), cos, sin, unsqueeze_dim, _all


def _pair_at_positions(q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, unsqueeze_dim: int = 1) -> _Call:
    return (q, k), cos, sin, unsqueeze_dim, _all


def _pair_apart(q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, unsqueeze_dim: int = 1) -> _Call:
    """Rotates pairs of adjacent features, and returns them in two halves."""
    return (q, k), cos, sin, unsqueeze_dim, _apart


def _optional_pair_apart(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> _Call:
    """_pair_apart with optional keys."""
    if k is None:
        return (q,), cos, sin, unsqueeze_dim, lambda q: (*_apart(q), None)
    return (q, k), cos, sin, unsqueeze_dim, _apart


def _apart(*rotated: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Features 0, 2, 4, …, and then 1, 3, 5, …"""
    return tuple(x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2) for x in rotated)


def _single(x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> _Call:
    return (x,), cos, sin, unsqueeze_dim, _only


def _single_at_end(x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> _Call | None:
    """Rotates the last features, as many as there are angles for."""
    before = x.shape[-1] - 2 * cos.shape[-1]
    if before < 0:
        return None
    return (x[..., before:],), cos, sin, unsqueeze_dim, functools.partial(_behind, -1, x[..., :before])


def _behind(dim: int, before: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
    return torch.cat((before, rotated), dim=dim)


def _triple_at_positions(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, position_ids: Any, unsqueeze_dim: int = 1
) -> _Call:
    """Rotates the values, too. The angles are those of all positions."""
    return (q, k, v), cos[position_ids], sin[position_ids], unsqueeze_dim, _all


def _image(q: Any, k: Any, cos: Any, sin: Any) -> _Call | None:
    """[B, H, T, D] and angles of [T, …] or [1, T, …], the same for all images."""
    if cos.dim() == 3 and cos.shape[0] != 1:  # angles per head
        return None
    return (q, k), *((cos[None], sin[None]) if cos.dim() == 2 else (cos, sin)), 1, _all


def _sine_first(tensor: Any, sin: Any, cos: Any) -> _Call:
    return (tensor,), cos, sin, 2, _only


def _vision(q: Any, k: Any, cos: Any, sin: Any) -> _Call | None:
    """[T, H, D] and angles of [T, …], without a batch."""
    if q.dim() != 3 or k.dim() != 3 or cos.dim() != 2:
        return None
    return (q[None], k[None]), cos[None], sin[None], 2, lambda q, k: (q[0], k[0])


def _complex_heads_first(xq: Any, xk: Any, freqs_cis: Any) -> _Call:
    angles = freqs_cis.to(xq.device)
    return (xq, xk), angles.real, angles.imag, 1, _all


def _complex_heads_last(xq: Any, xk: Any, freqs_cis: Any) -> _Call:
    angles = freqs_cis.to(xq.device)
    return (xq, xk), angles.real, angles.imag, 2, _all


def _complex_image(query: Any, key: Any, freqs_ci: Any) -> _Call | None:
    """[B, T, H, D] and angles of as many positions in any shape, the same for all images."""
    if not freqs_ci.is_complex():  # after `model.to(dtype)`
        return None
    angles = freqs_ci.to(query.device).view(1, query.shape[1], -1)
    return (query, key), angles.real, angles.imag, 2, _all


def _patches(q: Any, k: Any, cos: Any, sin: Any, **kwargs: Any) -> _Call | None:
    """Rotates the last T positions, by angles of [T, …] for all images."""
    if q.dim() != 4 or k.dim() != 4 or cos.dim() != 2:
        return None
    count = cos.shape[0]
    joined = functools.partial(_behind_each, q[..., :-count, :], k[..., :-count, :])
    return (q[..., -count:, :], k[..., -count:, :]), cos[None], sin[None], 1, joined


def _behind_each(before_q: torch.Tensor, before_k: torch.Tensor, *rotated: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(map(functools.partial(_behind, -2), (before_q, before_k), rotated))


_CALLS: dict[str, Any] = {
    call.__name__[1:]: call
    for call in (
        _pair,
        _pair_at_positions,
        _pair_apart,
        _optional_pair_apart,
        _single,
        _single_at_end,
        _triple_at_positions,
        _image,
        _sine_first,
        _vision,
        _complex_heads_first,
        _complex_heads_last,
        _complex_image,
        _patches,
    )
}
