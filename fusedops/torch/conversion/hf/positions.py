"""Models that count the positions of their tokens, without the search for packed sequences.

Without an `attention_mask` and a cache, transformers searches the positions for packed sequences. That waits for the
GPU, and compiled code, which cannot read values, gets a full mask. A model that gets no `position_ids` counts positions
from the first token on, so there are no packed sequences. If it gets their offsets, as `cu_seq_lens_q`, the attention
needs no mask of them. The counterpart's `forward` is then the same code with mask functions that ignore the positions.

Some models, such as gpt-oss, make their masks without the positions, and only pass them on to the attention, where
transformers' flash attention searches them. For these the counterpart searches positions that it gets.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from types import CellType, FunctionType
from typing import Any

import torch

from fusedops.conversion import UnknownClass
from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf import implementation, masks
from fusedops.torch.conversion.hf.code import copied, with_global
from fusedops.torch.conversion.hf.layer import HFLayer

_MASKS = ("create_causal_mask", "create_sliding_window_causal_mask", "create_chunked_causal_mask")
_POSITIONS = "position_ids"
# Expressions for positions that count up by one. An added cache length changes nothing.
_COUNTED = re.compile(
    r"torch\.arange\(\w+\.shape\[1\], device=\w+\.device\)( \+ \w+)?"
    rf"|{_POSITIONS}\.unsqueeze\(0\)"
    rf"|{_POSITIONS}\.view\(1, 1, -1\)\.expand\(\d, \w+\.shape\[0\], -1\)"  # one for each axis of an image
    rf"|{_POSITIONS}\[None, \.\.\.\]\.expand\(\d, {_POSITIONS}\.shape\[0\], -1\)"
    rf"|{_POSITIONS}\[1:\]"
)


class OwnPositions(HFLayer):
    """A model that has no packed sequences if it gets no positions, and needs no mask of them if it gets offsets."""

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        theirs = vars(kind)["forward"]
        plain = made = inspect.unwrap(theirs)
        for name in _masks(plain):
            made = with_global(made, name, _without_positions(plain.__globals__[name]))
        unpacked = _wrapped_alike(theirs, plain, made)
        ours = {name: by.has_full_masks for name, by in implementation.names().items()}
        places = {name: plain.__code__.co_varnames.index(name) - 1 for name in _parameters(plain)}  # without self
        searches, keeps_offsets = _only_passes_on(plain), _hands_offsets_on(kind)

        @functools.wraps(theirs)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            def argument(name: str) -> Any:
                place = places.get(name, len(args))
                return args[place] if place < len(args) else kwargs.get(name)

            given, offsets = argument(_POSITIONS), kwargs.get("cu_seq_lens_q")
            name = self.config._attn_implementation
            if name not in ours:
                return (unpacked if given is None else theirs)(self, *args, **kwargs)
            tokens = argument("inputs_embeds") if (ids := argument("input_ids")) is None else ids
            is_alone = argument("attention_mask") is None and argument("past_key_values") is None
            if offsets is None and given is not None and searches and is_alone and not torch.compiler.is_compiling():
                offsets = masks.offsets_of(given, tokens.shape[0])
                kwargs |= {} if offsets is None else {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
            elif offsets is not None and (ours[name] or not keeps_offsets):
                # The mask has the sequences, which transformers finds in positions.
                if given is None and is_alone:
                    given = masks.positions_of(offsets, *tokens.shape[:2])
                    place = places[_POSITIONS]
                    if place < len(args):
                        args = (*args[:place], given, *args[place + 1 :])
                    else:
                        kwargs[_POSITIONS] = given
                offsets = None
            return (theirs if offsets is None and given is not None else unpacked)(self, *args, **kwargs)

        return {"forward": forward}


def makes_own(kind: type) -> bool:
    """True if a class's `forward` counts the positions that it does not get, and makes its masks."""
    plain = inspect.unwrap(vars(kind)["forward"])
    if not isinstance(plain, FunctionType) or not _masks(plain):
        return False
    if _POSITIONS not in _parameters(plain):
        return False
    try:
        tree, _ = source.tree_of(plain)
    except source.NoSource:
        return False
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_stored(node.targets[0])]
    stored = [node for node in ast.walk(tree) if _is_stored(node)]
    return 0 < len(made) == len(stored) and all(_COUNTED.fullmatch(ast.unparse(node.value)) for node in made)


def _parameters(plain: FunctionType) -> tuple[str, ...]:
    return plain.__code__.co_varnames[: plain.__code__.co_argcount]


def _only_passes_on(plain: FunctionType) -> bool:
    """True if a `forward` hands positions and further arguments to its layers, and no positions to its masks."""
    tree, _ = source.tree_of(plain)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_masks = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id in _MASKS]
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]  # of `**mask_kwargs`
    if _has_positions(keys) or any(_has_positions(ast.walk(node)) for node in of_masks):
        return False
    named = ([item.arg for item in node.keywords] for node in calls)
    return any(_POSITIONS in names and None in names for names in named)


def _hands_offsets_on(kind: type) -> bool:
    """True if no layer of a model drops further arguments, such as the offsets, on the way to the attention.

    StableLM's layers do: they call their attention without them.
    """
    layers, found = [kind], {kind}
    for layer in layers:
        built = set(_classes(layer)) - found
        found |= built
        layers += built
    return all(map(_hands_arguments_on, found))


def _classes(kind: type) -> Iterable[type]:
    """The classes of modules that the code of a class's `__init__`, or its base's, names."""
    for base in kind.__mro__:
        made = inspect.unwrap(vars(base).get("__init__", object.__init__))
        if isinstance(made, FunctionType) and not base.__module__.startswith("torch."):
            values = [made.__globals__.get(name) for name in implementation.words(made.__code__)]
            values += [each for value in values if isinstance(value, dict) for each in value.values()]
            yield from (x for x in values if isinstance(x, type) and issubclass(x, torch.nn.Module))


@functools.cache
def _hands_arguments_on(kind: type) -> bool:
    """False if the `forward` of a class gives its mask to a module or an attention, but no further arguments."""
    plain = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    if not isinstance(plain, FunctionType) or kind.__module__.startswith("torch."):
        return True
    try:
        tree, _ = source.tree_of(plain)
    except source.NoSource:
        return True
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _gets_mask(node)]
    names = [[item.arg for item in node.keywords] for node in calls if _is_part(node.func, plain)]
    return all(None in each or "encoder_hidden_states" in each for each in names)


def _gets_mask(call: ast.Call) -> bool:
    given = [*call.args, *(item.value for item in call.keywords if item.arg == "attention_mask")]
    return any(isinstance(value, ast.Name) and value.id == "attention_mask" for value in given)


def _is_part(called: ast.expr, plain: FunctionType) -> bool:
    """True for a local variable or a public attribute of `self`, unless its name says that it makes masks."""
    if isinstance(called, ast.Name):
        return called.id not in {*plain.__globals__, *vars(builtins)} and "mask" not in called.id
    is_own = isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self"
    return is_own and not called.attr.startswith("_") and "mask" not in called.attr  # type: ignore[attr-defined]


def _has_positions(nodes: Iterable[ast.AST | None]) -> bool:
    """True if one is the variable, the string or an argument of this name."""
    found = ((getattr(node, "id", None), getattr(node, "value", None), getattr(node, "arg", None)) for node in nodes)
    return any(_POSITIONS in names for names in found)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == _POSITIONS and not isinstance(node.ctx, ast.Load)


def _masks(plain: FunctionType) -> list[str]:
    """The global names of transformers' mask functions that a function calls."""
    names = (name for name in _MASKS if name in plain.__code__.co_names)
    return [name for name in names if getattr(plain.__globals__.get(name), "__module__", "").endswith("masking_utils")]


def _without_positions(mask: Callable[..., Any]) -> Callable[..., Any]:
    def of_one_sequence(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return mask(*args, **kwargs)

    return of_one_sequence


def _wrapped_alike(function: Any, plain: FunctionType, other: FunctionType) -> FunctionType:
    """Applies the decorators between `plain` and `function` to another function.

    Raises:
        UnknownClass: a decorator stores the decorated function elsewhere than in one closure variable.
    """
    if function is plain:
        return other
    inner = function.__wrapped__
    made = _wrapped_alike(inner, plain, other)
    cells = function.__closure__ or ()
    if sum(cell.cell_contents is inner for cell in cells) != 1:
        raise UnknownClass("the decorator of its forward is not known")
    cells = tuple(CellType(made) if cell.cell_contents is inner else cell for cell in cells)
    copy = copied(function, closure=cells)
    functools.update_wrapper(copy, made)
    return copy
