"""Attentions whose own code computes scores, their softmax, and the product with the values.

The counterpart's methods are copies of the original's code with deferred products: that of queries and keys returns a
`Deferred`, which records the steps after it, and that of the probabilities and the values calls
`fusedops.torch.attention` with all of them. A step outside of the operator's formula, and any other use of a
`Deferred`, computes the tensor with the original's functions, so the code between both products need not be known.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fusedops.torch as fo
from fusedops.functions.common import MAX_FEATURES
from fusedops.torch import internals
from fusedops.torch.conversion import functional as kernels
from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf import implementation, rotary
from fusedops.torch.conversion.hf.code import compiled, with_global, without_no_grad
from fusedops.torch.conversion.hf.internals import _active_collector as collector
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.conversion.hf.masks import as_bias
from fusedops.torch.nn.layer import FLOATING, unfused_input

_NAME = "_deferred_product"  # the global name of `_product_of` in the copies
_PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
_ATTENTION = "scaled_dot_product_attention"
_MASKED = -1e4  # scores this low have the probability 0 beside others
_PACKAGES = ("transformers", "transformers_modules")


class DeferredAttention(HFLayer):
    """An attention whose methods are copies of the original's code with deferred products."""

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        found = {name: decorate(_with_deferred(method)) for name, method, decorate in _methods(kind)}
        forward = found.get("forward", kind.forward)  # type: ignore[attr-defined]
        if any(rotary.rotations(kind)):
            forward = rotary.with_kernel(kind, forward)
        return {**found, "forward": _without_deferred(forward)}


def computes_scores(kind: type) -> bool:
    """True for a class of transformers with a softmax between products in its code, or a call of torch's attention."""
    if str(kind.__module__).partition(".")[0] not in _PACKAGES:
        return False
    words = implementation.words_of_class(kind)  # `apply` calls an autograd.Function, which takes no `Deferred`
    if implementation.REGISTRY in words or "apply" in words or words.isdisjoint(("softmax", "Softmax", _ATTENTION)):
        return False
    try:
        found = [name for _, method, _ in _methods(kind) for name in _Products.of(method).names]
    except source.NoSource:
        return False
    return len(found) > 1 or _ATTENTION in found


def _methods(kind: type) -> Iterator[tuple[str, FunctionType, Callable[[FunctionType], Any]]]:
    """(name, function, decorator) of the methods with products of a class and its bases in the same package."""
    for name in dir(kind):
        method, decorate = without_no_grad(inspect.getattr_static(kind, name, None))
        if not isinstance(method, FunctionType) or not method.__module__.startswith(_PACKAGES):
            continue
        if not method.__closure__ and not hasattr(method, "__wrapped__") and _Products.of(method).names:
            yield name, method, decorate


class _Products(ast.NodeTransformer):
    """Replaces calls of products and of `torch.tensor`: `owner.name(...)` becomes `_NAME(owner, "name")(...)`, and
    `a @ b` becomes `_NAME(None, "matmul")(a, b)`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.variables: set[str] = set()  # that a product was assigned to
        self.tree: ast.FunctionDef
        self.line = 0

    @classmethod
    @functools.cache
    def of(cls, method: FunctionType) -> _Products:
        """Raises NoSource if the source is not available."""
        made = cls()
        tree, made.line = source.tree_of(method)
        tree = copy.deepcopy(tree)
        tree.decorator_list = []
        made.tree = made.visit(tree)
        return made

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        before = len(self.names)
        self.generic_visit(node)
        if len(self.names) > before:
            self.variables |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        """`x = x + y` for `x += y`: the operator saves its result for the backward."""
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name) or node.target.id not in self.variables:
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        return ast.copy_location(ast.Call(self._product(node, None, "matmul"), [node.left, node.right], []), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=owner, attr=name) if name in (*_PRODUCTS, _ATTENTION):
                node.func = self._product(node, owner, name)
            case ast.Attribute(value=owner, attr="tensor"):
                node.func = self._called(node, owner, "tensor")
        return node

    def _product(self, node: ast.expr, owner: ast.expr | None, name: str) -> ast.expr:
        self.names.append(name)
        return self._called(node, owner, name)

    def _called(self, node: ast.expr, owner: ast.expr | None, name: str) -> ast.expr:
        function = ast.Name(_NAME, ast.Load())
        return ast.copy_location(ast.Call(function, [owner or ast.Constant(None), ast.Constant(name)], []), node)


def _with_deferred(method: FunctionType) -> FunctionType:
    products = _Products.of(method)
    return with_global(compiled(products.tree, products.line, method), _NAME, _product_of)


def _without_deferred(forward: Any) -> FunctionType:
    """A forward that returns None for probabilities, as transformers' sdpa does, or computes them if they are used."""
    names = [*inspect.signature(forward).parameters][1:]
    number = names.index("output_attentions") if "output_attentions" in names else len(names)

    @functools.wraps(forward)
    def attended(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = forward(self, *args, **kwargs)
        if not isinstance(found, tuple):
            return _returned(found, is_used=True)
        given = args[number] if len(args) > number else kwargs.get("output_attentions")
        is_used = given or getattr(getattr(self, "config", None), "output_attentions", False)
        return tuple(_returned(each, is_used or _is_collected()) for each in found)

    return attended  # type: ignore[return-value]


def _returned(found: Any, is_used: bool) -> Any:
    if isinstance(found, Deferred):
        return found.tensor() if is_used or not found.has_softmax else None
    if type(found) in (tuple, list):
        return type(found)(_returned(each, is_used) for each in found)
    return {key: _returned(each, is_used) for key, each in found.items()} if type(found) is dict else found


def _is_collected() -> bool:
    """True while transformers collects the probabilities of attentions."""
    found = collector.global_var if torch.compiler.is_compiling() else collector.get()
    return bool(found) and any("attentions" in key for key in found)


def _product_of(owner: Any, name: str) -> Callable[..., Any]:
    """The function `owner.name`, or one that defers it if it is torch's product."""
    function: Callable[..., Any]
    if owner is None or isinstance(owner, Tensor | Deferred):
        function = getattr(torch, name)
        return functools.partial(_product, function, *(() if owner is None else (owner,)))
    function = getattr(owner, name)
    if function is functional.scaled_dot_product_attention:
        return kernels.scaled_dot_product_attention
    if function is torch.tensor:
        return _tensor
    return functools.partial(_product, function) if getattr(torch, name, None) is function else function


def _tensor(data: Any, **options: Any) -> Any:
    """`torch.tensor`; a number that masks stays where `_hidden` reads it without waiting for a GPU: on the CPU, and in
    compiled code, which would leave its graph to read a tensor, a number."""
    if isinstance(data, float | int) and data <= _MASKED:
        if torch.compiler.is_compiling():
            return data
        options.pop("device", None)
    return torch.tensor(data, **options)


def _product(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if internals.tracing_state() is not None or any(map(internals.is_symbol, _flat(args))):
        return function(*args, **kwargs)
    if any(isinstance(each, Deferred) for each in _flat(args)):
        return _apply(function, args, kwargs)
    made = _begun(function, *args, **kwargs)
    if made is None:
        return function(*args, **kwargs)
    made.compute = functools.partial(function, *args, **kwargs)
    return made


def _flat(args: Sequence[Any]) -> Iterator[Any]:
    for each in args:
        yield from each if isinstance(each, tuple | list) else (each,)


def _begun(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred | None:
    """The scores of a product; None if the operator takes no such queries and keys."""
    bias, scale = None, 1.0
    match function.__name__:
        case "baddbmm":
            call = inspect.signature(lambda input, batch1, batch2, *, beta=1, alpha=1: None).bind(*args, **kwargs)
            call.apply_defaults()
            added, q, k, beta, scale = call.arguments.values()
            bias, k = added if beta == 1 else added * beta, k.mT
        case "einsum":
            found = _of_einsum(*args, is_first=True)
            if found is None:
                return None
            q, k = found
        case _:
            if len(args) != 2 or kwargs:
                return None
            q, k = args[0], args[1].mT if args[1].dim() > 1 else args[1]
    if not _is_floating(q) or not _is_floating(k) or q.dim() != k.dim() or q.dim() < 3 or unfused_input(q):
        return None
    if q.shape[-1] != k.shape[-1] or not 0 < q.shape[-1] <= MAX_FEATURES or q.shape[:-3] != k.shape[:-3]:
        return None
    if q.shape[-3] != k.shape[-3] and (q.dim() < 4 or k.shape[-3] != 1):
        return None
    dtype = torch.get_autocast_dtype(q.device.type) if torch.is_autocast_enabled(q.device.type) else q.dtype
    made = Deferred(q, k, torch.Size((*q.shape[:-1], k.shape[-2])), dtype, float(scale))
    return made if bias is None else _add(made, bias)


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in FLOATING


_ATTRIBUTES = (
    *("q", "k", "shape", "dtype", "scale", "biases", "masks", "hidden", "views"),
    *("has_softmax", "dropout", "value", "compute"),
)


class Deferred:
    """Scores of an attention, or the probabilities of their softmax, that no code has read yet.

    Attributes:
        q, k: queries [..., T, D] and keys [..., S, D].
        shape: [..., T, S], in which a view may divide or join the leading dimensions.
        scale: the factor of the product.
        biases, masks: tensors that broadcast to a shape, with that shape's leading dimensions. True is visible.
        hidden: the masks of `masked_fill`.
        has_softmax, dropout: the steps after the scores.
        compute: returns the tensor, by the original's functions.
    """

    def __init__(self, q: Tensor, k: Tensor, shape: torch.Size, dtype: torch.dtype, scale: float) -> None:
        self.q, self.k, self.shape, self.dtype, self.scale = q, k, shape, dtype, scale
        self.biases: tuple[tuple[torch.Size, Tensor], ...] = ()
        self.masks: tuple[tuple[torch.Size, Tensor], ...] = ()
        self.hidden: tuple[Tensor, ...] = ()
        self.views = (q.shape[:-2],)  # leading dimensions
        self.has_softmax, self.dropout = False, 0.0
        self.value: Tensor | None = None
        self.compute: Callable[[], Tensor] | None = None

    def tensor(self) -> Tensor:
        if self.value is None:
            assert self.compute is not None
            self.value = self.compute()
        return self.value

    def but(self, **changes: Any) -> Deferred:
        made = Deferred(self.q, self.k, self.shape, self.dtype, self.scale)
        made.assign(self)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def assign(self, other: Deferred) -> None:
        """Sets every attribute, by name: PyTorch 2.11 traces neither copy.copy nor a change of `__dict__`."""
        for name in _ATTRIBUTES:
            setattr(self, name, getattr(other, name))

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _apply(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(Tensor, name)
        return functools.partial(_method, found, self) if callable(found) else getattr(self.tensor(), name)


def _method(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _apply(function, args, kwargs)


_OPERATORS = ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod")
_SPECIAL = (
    *(f"__{prefix}{name}__" for name in _OPERATORS for prefix in ("", "r", "i")),
    *("__neg__", "__invert__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__getitem__"),
    *("__setitem__", "__len__", "__bool__", "__float__", "__int__", "__iter__", "__contains__"),
)


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def operator(self: Deferred, *args: Any) -> Any:
        return _apply(function, (self, *args), {})

    return operator


for _name in _SPECIAL:
    if hasattr(Tensor, _name):
        setattr(Deferred, _name, _operator(_name))


def _apply(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Applies a function of torch to arguments of which some are `Deferred`."""
    step, is_in_place = _STEPS_OF.get(function, (None, False))
    is_open = all(each.value is None for each in _flat(args) if isinstance(each, Deferred))
    made = step(*args, **kwargs) if step and is_open else None
    first = args[0]
    is_in_place = is_in_place and isinstance(first, Deferred)
    if is_in_place and isinstance(made, Deferred):
        args = (first.but(), *args[1:])
    compute = functools.partial(_computed, function, args, kwargs)
    if made is None:
        found = compute()
        return first if is_in_place else found
    if isinstance(made, Deferred):
        made.compute = compute
        if is_in_place:
            first.assign(made)
            return first
    return made


def _computed(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    return function(*map(_plain, args), **{name: _plain(value) for name, value in kwargs.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Deferred):
        return value.tensor()
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


# The steps that a `Deferred` records, with the arguments of torch's functions. None: the operator has no such step.


def _add(x: Any, y: Any, alpha: float = 1, **others: Any) -> Deferred | None:
    if not isinstance(x, Deferred):
        x, y = y, x
    y = _plain(y)
    if x.has_softmax or alpha != 1 or others or not _is_floating(y) or not _fits(y, x.shape):
        return None
    dtype = torch.promote_types(x.dtype, y.dtype) if y.dim() else x.dtype
    return x.but(biases=(*x.biases, (x.shape[:-2], y)), dtype=dtype)


def _sub(x: Any, y: Any, alpha: float = 1, **others: Any) -> Deferred | None:
    return _add(x, -y, alpha, **others) if isinstance(x, Deferred) and _is_floating(y) else None


def _mul(x: Any, y: Any, **others: Any) -> Deferred | None:
    if not isinstance(x, Deferred):
        x, y = y, x
    return None if others else _scaled(x, y, lambda a: a * y)


def _div(x: Any, y: Any, **others: Any) -> Deferred | None:
    return None if others or not isinstance(x, Deferred) else _scaled(x, y, lambda a: a / y)


def _scaled(x: Deferred, factor: Any, apply: Callable[[Any], Any]) -> Deferred | None:
    """The scores times a number, or a tensor with one element for all keys."""
    if x.has_softmax or isinstance(factor, Deferred):
        return None
    if isinstance(factor, float | int):
        biases = tuple((of, apply(bias)) for of, bias in x.biases)
        return x.but(scale=apply(x.scale), biases=biases)
    is_factor = _is_floating(factor) and _fits(factor, x.shape) and (factor.dim() == 0 or factor.shape[-1] == 1)
    if not is_factor or x.biases or x.shape[:-2] != x.q.shape[:-2]:
        return None
    q = apply(x.q).to(x.q.dtype)
    return x.but(q=q) if q.shape == x.q.shape else None


def _masked_fill(x: Any, mask: Any, value: Any) -> Deferred | None:
    if not isinstance(x, Deferred) or not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        return None
    if x.has_softmax:  # masked keys have the probability 0 already
        is_filled = isinstance(value, float | int) and value == 0 and any(mask is each for each in x.hidden)
        return x.but() if is_filled else None
    return _hidden(x, mask, value, ~mask)


def _where(condition: Any, x: Any, y: Any) -> Deferred | None:
    if not isinstance(x, Deferred) or x.has_softmax or not isinstance(condition, Tensor):
        return None
    return _hidden(x, condition, y, condition) if condition.dtype is torch.bool else None


def _hidden(x: Deferred, mask: Tensor, value: Any, visible: Tensor) -> Deferred | None:
    if isinstance(value, Tensor) and value.dim() == 0 and value.is_cpu:
        value = value.item()
    if not isinstance(value, float | int) or value > _MASKED or not _fits(mask, x.shape):
        return None
    return x.but(masks=(*x.masks, (x.shape[:-2], visible)), hidden=(*x.hidden, mask))


def _softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None, **others: Any) -> Deferred | None:
    if not isinstance(x, Deferred) or x.has_softmax or others or dim not in (-1, x.dim() - 1):
        return None
    is_cast = torch.is_autocast_enabled(x.device.type)
    return x.but(has_softmax=True, dtype=dtype or (torch.float32 if is_cast else x.dtype))


def _dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Deferred | None:
    if not isinstance(x, Deferred) or not x.has_softmax or x.dropout or inplace or not 0 <= p < 1:
        return None
    return x.but(dropout=p if training else 0.0)


def _view(x: Any, *shape: Any) -> Deferred | None:
    if not isinstance(x, Deferred):
        return None
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if not all(isinstance(each, int | torch.SymInt) for each in sizes):
        return None
    known = math.prod([each for each in sizes if each != -1])
    sizes = tuple([math.prod(x.shape) // max(known, 1) if each == -1 else each for each in sizes])
    if sizes[-2:] != tuple(x.shape[-2:]) or math.prod(sizes) != math.prod(x.shape):
        return None
    return x.but(shape=torch.Size(sizes), views=(*x.views, torch.Size(sizes[:-2])))


def _to(x: Any, *args: Any, **kwargs: Any) -> Any:
    """A conversion to a dtype. The operator computes in float32 at least."""
    given = [*args, *(kwargs[name] for name in ("dtype", "device", "other") if name in kwargs)]
    dtypes = [getattr(each, "dtype", each) for each in given if not isinstance(each, torch.device | str | bool)]
    devices = [torch.device(each) for each in given if isinstance(each, torch.device | str)]
    dtype = next((each for each in dtypes if isinstance(each, torch.dtype)), x.dtype)
    if not isinstance(x, Deferred):
        return x.to(dtype)
    is_known = kwargs.keys() <= {"dtype", "device", "other"} and all(each == x.device for each in devices)
    return x.but(dtype=dtype) if is_known and dtype.is_floating_point else None


def _like(name: str) -> Callable[..., Any]:
    """A tensor in the shape of a `Deferred`."""

    def shaped(x: Any, other: Any) -> Any:
        return getattr(x, name)(other.shape)

    return shaped


def _same(x: Any) -> Deferred | None:
    return x.but() if isinstance(x, Deferred) else None


def _matmul(p: Any, v: Any, **others: Any) -> Tensor | None:
    return None if others else _attended(p, v)


def _einsum(*args: Any) -> Tensor | None:
    found = _of_einsum(*args, is_first=False)
    if found is None:
        return None
    p, v, order = found
    y = _attended(p, v)
    return None if y is None else y.permute(order)


def _of_einsum(equation: Any, *operands: Any, is_first: bool) -> Any:
    """A product as `matmul(a, b.mT)`, or with probabilities as `matmul(a, b)` and the order of its dimensions after it.

    Each returned tensor has the dimensions of the batch first, in the order of the result's or the probabilities'.
    """
    operands = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    labels, _, result = equation.replace(" ", "").partition("->")
    a, _, b = labels.partition(",")
    more = operands[0].dim() - len(a.replace("...", ""))
    dots = "ABCDEFGH"[: max(more, 0)]
    a, b, result = (each.replace("...", dots) for each in (a, b, result))
    if any(len(set(each)) != len(each) for each in (a, b, result)) or (len(a), len(b)) != tuple(
        x.dim() for x in operands
    ):
        return None
    shared = set(a) & set(b)
    batch = [each for each in (result if is_first else a) if each in shared and each in result]
    inner, rows, columns = shared - set(result), set(a) - shared, set(b) - shared
    if not len(inner) == len(rows) == len(columns) == 1 or set(result) != {*batch, *rows, *columns}:
        return None
    i, t, n = (next(iter(each)) for each in (inner, rows, columns))
    if is_first:
        if result != "".join((*batch, t, n)):
            return None
        return tuple(
            x.permute([of.index(c) for c in (*batch, *ends)])
            for x, of, ends in zip(operands, (a, b), ((t, i), (n, i)), strict=True)
        )
    if a != "".join((*batch, t, i)):
        return None
    v = operands[1].permute([b.index(each) for each in (*batch, i, n)])
    return operands[0], v, [[*batch, t, n].index(each) for each in result]


def _attended(p: Any, v: Any) -> Tensor | None:
    """The product of probabilities and values, by the operator; None if it takes no such tensors."""
    if not isinstance(p, Deferred) or not p.has_softmax or not _is_floating(v) or v.shape[-1] > MAX_FEATURES:
        return None
    if v.shape[:-2] != p.shape[:-2] or v.shape[-2] != p.shape[-1] or v.shape[-1] == 0:
        return None
    if not torch.is_autocast_enabled(v.device.type) and not p.dtype is v.dtype is p.q.dtype is p.k.dtype:
        return None
    own = p.views[0]
    heads = next((each for each in p.views if len(each) == 2), torch.Size((math.prod(own[:-1]), own[-1])))
    if len(own) == 1 and heads == (1, own[0]):
        heads = torch.Size((own[0], 1))
    key_heads = heads[1] if p.k.shape[-3] == p.q.shape[-3] else 1
    q, k, values = (
        x.reshape(heads[0], count, *x.shape[-2:]) for x, count in ((p.q, heads[1]), (p.k, key_heads), (v, heads[1]))
    )
    if key_heads != heads[1]:
        k = k.expand(-1, heads[1], -1, -1)
    bias = _joined([_by_heads(x, of, heads) for of, x in p.biases], torch.add)
    y = fo.attention(
        *(q, k, values),
        scale=p.scale,
        mask=_joined([_by_heads(x, of, heads) for of, x in p.masks], torch.logical_and),
        dropout=p.dropout,
        seq_dim=-2,
        bias=None if bias is None else as_bias(bias, q),
    )
    return y.reshape(*p.shape[:-1], v.shape[-1])


def _by_heads(x: Tensor, of: torch.Size, heads: torch.Size) -> Tensor:
    """A tensor that broadcasts to [*of, T, S] as one that broadcasts to [*heads, T, S]."""
    x = x.reshape((1,) * (len(of) + 2 - x.dim()) + x.shape)
    if all(size == 1 for size in x.shape[:-2]):
        return x.reshape(1, 1, *x.shape[-2:])
    return x if of == heads else x.expand(*of, *x.shape[-2:]).reshape(*heads, *x.shape[-2:])


def _joined(tensors: Sequence[Tensor], join: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    return functools.reduce(join, tensors) if tensors else None


def _fits(x: Tensor, shape: torch.Size) -> bool:
    """True if x broadcasts to the shape."""
    sizes = zip(x.shape[::-1], shape[::-1], strict=False)
    return x.dim() <= len(shape) and all(size in (1, whole) for size, whole in sizes)


_STEPS: Mapping[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "masked_fill": _masked_fill,
    "where": _where,
    "softmax": _softmax,
    "dropout": _dropout,
    "view": _view,
    "reshape": _view,
    "to": _to,
    "type": _to,
    "type_as": _to,
    "float": lambda x: _to(x, torch.float32),
    "expand_as": _like("expand"),
    "view_as": _like("view"),
    "reshape_as": _like("reshape"),
    "contiguous": _same,
    "matmul": _matmul,
    "bmm": _matmul,
    "einsum": _einsum,
}


def _functions() -> Iterator[tuple[Any, tuple[Callable[..., Any], bool]]]:
    """(function of torch, (step, True if it changes its first argument))."""
    for name, step in _STEPS.items():
        special = {"div": "truediv"}.get(name, name)
        reverse = (f"__r{special}__",) if name in ("add", "mul") else ()
        for names, is_in_place in (
            ((name, f"__{special}__", *reverse), False),
            ((f"{name}_", f"__i{special}__"), True),
        ):
            for each, owner in itertools.product(names, (Tensor, torch, functional)):
                if (function := getattr(owner, each, None)) is not None:
                    yield function, (step, is_in_place)


_STEPS_OF = dict(_functions())
