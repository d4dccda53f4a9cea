"""The axes along which a call of an operator can be divided, and the parts of its tensors.

`Axes` in core_cuda/core/declaration/signature.h describes the notation in which operators declare them. The code is
independent of frameworks: shapes are sequences of sizes, which may be a tracer's symbols.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from fusedops.declarations import Axes, Operator

_LEADING = "..."
_TERM = re.compile(
    r"(?P<broadcast>~?)(?P<axes>1|(?:[a-zA-Z]|\.\.\.)+)(?:\^(?P<swapped>\w+))?"
    r"(?:/(?P<summed>(?:[a-zA-Z]|\.\.\.)+))?(?::(?P<weight>\w+))?(?:\|(?P<given>\w+))?"
)
_PLACE = re.compile(r"(?P<axis>[a-zA-Z])@(?P<offset>\w+)/(?P<size>\w+)")
_NUMBERED = re.compile(r"(?P<seed>\w+)@(?P<axes>(?:[a-zA-Z]|\.\.\.)+)")
_CONDITION = re.compile(r"(?P<absent>!?)(?P<name>\w+)(?:(?P<relation>!?=)(?P<value>\S+))?")


@dataclass(frozen=True)
class Share:
    """The relation of a tensor in one part of a call to the tensor of the whole call."""

    kind: str  # "all" of it, a "part", a "term" of a sum, or a "mean": the parts' weighted mean is the whole
    dim: int = 0  # of a "part": the divided dimension
    is_weighted: bool = False  # a "part", to be multiplied by its fraction of the weight

    def is_part(self, dim: int) -> bool:
        """True for a part along this dimension."""
        return self.kind == "part" and self.dim == dim


ALL, TERM, MEAN = Share("all"), Share("term"), Share("mean")


@dataclass(frozen=True)
class Numbered:
    """The tensor whose elements a seed numbers, row by row. Its parts begin at `offsets` and have `sizes`."""

    seed: int  # the place of the seed among the inputs
    shape: tuple[Any, ...]

    def runs(self, offsets: Sequence[Any], sizes: Sequence[Any]) -> tuple[Any, Any, Any]:
        """The three further numbers of a part's seed: Runs of core_cuda/core/common/philox.h."""
        inner = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        first = sum(offset * step for offset, step in zip(offsets, inner, strict=True))
        last = max((i for i, n in enumerate(sizes) if n != self.shape[i]), default=0)
        if math.prod(sizes[:last]) == 1:
            return first, 0, 0  # one run
        return first, sizes[last] * inner[last], self.shape[last] * inner[last]

    def allows(self, divided: Sequence[int]) -> bool:
        """True if three numbers describe the parts along these dimensions together: besides one of them, all others
        have no dimension before them that has more than one element."""
        return all(math.prod(self.shape[:dim]) == 1 for dim in sorted(divided)[:-1])


@dataclass(frozen=True)
class Division:
    """An axis along which a call can be divided, with the share that a part has of each tensor."""

    axis: str
    sizes: tuple[Any, ...]  # of the tensors that have the axis
    inputs: tuple[Share, ...]
    outputs: tuple[Share, ...]
    place: tuple[str, str] | None = None  # the attributes of `attributes_at`
    numbered: Numbered | None = None  # of a call with a seed
    numbered_dim: int = 0  # the dimension of `numbered` that is divided

    def attributes_at(self, offset: Any) -> dict[str, Any]:
        """The attributes of the part that begins here along the axis, besides those of the whole call."""
        return {} if self.place is None else dict(zip(self.place, (offset, self.sizes[0]), strict=True))

    def allows(self, parts: int) -> bool:
        """True if a call can be divided into this many parts.

        Parts may differ in size if all tensors have the same number of elements along the axis. Otherwise, as for key
        heads that several heads share, parts are equal.
        """
        return all(size == self.sizes[0] for size in self.sizes) or all(size % parts == 0 for size in self.sizes)


def divisions(
    operator: Operator,
    attributes: Mapping[str, Any],
    inputs: Sequence[Sequence[Any] | None],
    outputs: Sequence[Sequence[Any]],
) -> list[Division]:
    """The ways to divide a call with these attributes and shapes. An absent input is None."""
    terms = _terms(operator, attributes, inputs)
    if terms is None:
        return []
    shapes = (*inputs, *outputs)
    leading = (
        len(s) - len(t.axes) + 1
        for t, s in zip(terms.tensors, shapes, strict=True)
        if s is not None and _LEADING in t.axes
    )
    given = {x.name for x, shape in zip(operator.inputs, inputs, strict=True) if _is_divisible(shape)}
    rank = max([0, *leading])
    tensors = _placed([t.beside(given) for t in terms.tensors], shapes, rank)
    seed = _seed(operator, terms, inputs)
    if seed is not None and tuple(inputs[seed] or ()) != (2,):
        return []  # the call itself is a part
    sizes_of = _sizes(tensors, shapes)
    numbered_axes = () if seed is None or terms.numbered is None else _expanded(terms.numbered[1], rank)
    numbered = None if seed is None else Numbered(seed, tuple(sizes_of[axis] for axis in numbered_axes))
    axes = dict.fromkeys(axis for tensor in tensors for axis in tensor.dims if axis and not axis.isupper())
    found = []
    for axis in axes:
        sizes = tuple(s[x.dims.index(axis)] for x, s in zip(tensors, shapes, strict=True) if s and axis in x.dims)
        shares = [x.share(axis, i >= len(inputs)) for i, x in enumerate(tensors)]
        place = terms.places.get(axis)
        dim = numbered_axes.index(axis) if numbered else 0
        both = tuple(shares[: len(inputs)]), tuple(shares[len(inputs) :])
        found.append(Division(axis, sizes, *both, place, numbered, dim))
    return found


def is_batched(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
    """True if the leading dimensions of a call are independent batch dimensions, so that it can have one more.

    Parameters and scalars have none, and no output is a sum over them. An output with an absent input's dtype is empty.
    With a seed the dimensions are not independent: one more would change the positions of elements.
    """
    terms = _terms(operator, attributes, inputs)
    if terms is None or _seed(operator, terms, inputs) is not None:
        return False
    tensors = terms.tensors
    own = [t for t, x in zip(tensors, operator.inputs, strict=False) if not x.parameter and x.kind != "scalar"]
    absent = {x.name for x, given in zip(operator.inputs, inputs, strict=True) if given is None}
    parameters = {x.name for x in operator.inputs if x.parameter}
    outputs = [
        (t, y) for t, y in zip(tensors[len(operator.inputs) :], operator.outputs, strict=True) if y.dtype not in absent
    ]
    if any(term.is_broadcast and output.dtype in parameters for term, output in outputs):
        return False  # the gradient of a parameter is a sum over the leading dimensions that it lacks
    own += [term for term, _ in outputs]
    return all(term.axes[:1] == (_LEADING,) for term in own)


def means(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> dict[int, int]:
    """The outputs that are means over axes, or gradients of one, each with the output that weights it.

    An absent input is None.
    """
    terms = _terms(operator, attributes, inputs)
    outputs = () if terms is None else terms.tensors[len(operator.inputs) :]
    names = [output.name for output in operator.outputs]
    return {i: names.index(term.weight) for i, term in enumerate(outputs) if term.weight is not None}


def as_sum(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> dict[str, str]:
    """The attributes with which the parts of a mean give terms of the sum, to be divided by the weight of all.

    The mean of a part of weight 0 is NaN or infinite, and tells nothing of its terms. Empty for calls without the
    attribute that makes a sum of a mean, and for those that keep its gradients: parts of weight 0 have no terms there,
    and sums may overflow in 16 bits.
    """
    if attributes.get("reduction") != "mean":
        return {}
    terms = _terms(operator, attributes, inputs)
    weighted = () if terms is None else [term for term in terms.tensors if term.weight is not None]
    return {"reduction": "sum"} if weighted and not any(term.axes for term in weighted) else {}


@dataclass(frozen=True)
class _Term:
    """The declared axes of one tensor."""

    axes: tuple[str, ...]
    summed: tuple[str, ...]
    is_broadcast: bool
    weight: str | None
    given: str | None  # the input that is the sum, if it is given and not empty

    def beside(self, given: Collection[str]) -> _Term:
        """The term in a call with these inputs."""
        return replace(self, summed=()) if self.given in given else self


@dataclass(frozen=True)
class _Terms:
    """A declaration: the axes of all inputs and outputs, the attributes with the place of a part, and the seed with the
    axes of the tensor whose elements it numbers."""

    tensors: tuple[_Term, ...]
    places: Mapping[str, tuple[str, str]]
    numbered: tuple[str, tuple[str, ...]] | None


@dataclass(frozen=True)
class _Tensor:
    """The axes of one tensor of a call."""

    term: _Term
    dims: tuple[str | None, ...]  # None: a dimension that no axis divides
    summed: tuple[str, ...]
    lacked: tuple[str, ...]  # axes along which it is broadcast

    def share(self, axis: str, is_output: bool) -> Share:
        if axis in self.dims:
            return Share("part", self.dims.index(axis), is_weighted=self.term.weight is not None)
        if axis in self.summed or (is_output and axis in self.lacked):
            return TERM if self.term.weight is None else MEAN
        return ALL


def _placed(terms: Sequence[_Term], shapes: Sequence[Sequence[Any] | None], leading: int) -> list[_Tensor]:
    sizes: dict[str, Any] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if _is_divisible(shape):
            known = zip(_last(_expanded(term.axes, leading), shape), shape, strict=False)
            sizes |= {axis: size for axis, size in known if not (term.is_broadcast and size == 1)}
    return [_tensor(term, shape, leading, sizes) for term, shape in zip(terms, shapes, strict=True)]


def _tensor(term: _Term, shape: Sequence[Any] | None, leading: int, sizes: Mapping[str, Any]) -> _Tensor:
    if not _is_divisible(shape):
        return _Tensor(term, (), (), ())
    axes, summed = _expanded(term.axes, leading), _expanded(term.summed, leading)
    own = _last(axes, shape)
    if not term.is_broadcast:
        return _Tensor(term, own, summed, ())
    dims = tuple(None if n == 1 and sizes.get(axis, 1) != 1 else axis for axis, n in zip(own, shape, strict=True))
    return _Tensor(term, dims, summed, tuple(axis for axis in axes if axis not in dims))


def _is_divisible(shape: Sequence[Any] | None) -> TypeGuard[Sequence[Any]]:
    """False for an absent input, and for an unneeded output, whose shape is [0] in all parts."""
    return shape is not None and not (len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 0)


def _expanded(axes: tuple[str, ...], leading: int) -> tuple[str, ...]:
    """The axes with "..." replaced by one axis per leading dimension."""
    if _LEADING not in axes:
        return axes
    place = axes.index(_LEADING)
    return (*axes[:place], *map(str, range(leading)), *axes[place + 1 :])


def _last(axes: tuple[str, ...], shape: Sequence[Any]) -> tuple[str, ...]:
    """The last axes, one per dimension."""
    return axes[max(0, len(axes) - len(shape)) :]


def _sizes(tensors: Sequence[_Tensor], shapes: Sequence[Sequence[Any] | None]) -> dict[str | None, Any]:
    """The size of each axis in the first tensor that has it: heads are those of queries."""
    sizes: dict[str | None, Any] = {}
    for tensor, shape in zip(tensors, shapes, strict=True):
        for axis, size in zip(tensor.dims, shape or (), strict=False):
            sizes.setdefault(axis, size)
    return sizes


def _seed(operator: Operator, terms: _Terms, inputs: Sequence[Any]) -> int | None:
    """The place of a seed that is given and numbers elements. An absent input is None."""
    names = [x.name for x in operator.inputs]
    place = None if terms.numbered is None else names.index(terms.numbered[0])
    return None if place is None or inputs[place] is None else place


def declared(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> Axes | None:
    """The declaration that applies to a call. An absent input is None."""
    given = {x.name for x, found in zip(operator.inputs, inputs, strict=True) if found is not None}
    for axes in operator.axes:
        if all(_holds(condition, operator, attributes, given) for condition in axes.when.split()):
            return axes
    return None


def _terms(operator: Operator, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> _Terms | None:
    axes = declared(operator, attributes, inputs)
    if axes is None:
        return None
    return _parsed(axes.tensors, frozenset(name for name, value in attributes.items() if value is True))


def _holds(condition: str, operator: Operator, attributes: Mapping[str, Any], given: Collection[str]) -> bool:
    match = _match(_CONDITION, condition)
    if match["relation"] is None:
        return (match["name"] in given) != bool(match["absent"])
    attribute = next(a for a in operator.attributes if a.name == match["name"])
    return bool(attributes[attribute.name] == attribute.read(match["value"])) == (match["relation"] == "=")


@functools.cache
def _parsed(declared: str, swapped: frozenset[str]) -> _Terms:
    tensors, *others = map(str.strip, declared.split(";"))
    inputs, outputs = tensors.split("->")
    texts = [text.strip() for side in (inputs, outputs) for text in side.split(",") if text.strip()]
    places = [_match(_PLACE, text) for text in others if "/" in text]
    numbered = [_match(_NUMBERED, text) for text in others if "/" not in text]
    return _Terms(
        tuple(_term(_match(_TERM, text), swapped) for text in texts),
        {match["axis"]: (match["offset"], match["size"]) for match in places},
        next(((match["seed"], _split(match["axes"])) for match in numbered), None),
    )


def _term(match: re.Match[str], swapped: Collection[str]) -> _Term:
    axes = _split(match["axes"])
    if match["swapped"] in swapped:
        axes = (*axes[:-2], axes[-1], axes[-2])
    return _Term(axes, _split(match["summed"]), bool(match["broadcast"]), match["weight"], match["given"])


def _split(axes: str | None) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-zA-Z]|\.\.\.", axes or ""))


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} must be in the notation of axes")
    return match
