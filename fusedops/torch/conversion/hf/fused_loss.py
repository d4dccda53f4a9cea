"""The loss of a causal language model without its logits.

The counterpart's `forward` is the model's own code, with a branch where the head is called:

    _states = hidden_states
    if self.leaves_out_logits(_states, labels):
        logits = None
        loss = self.loss_of(_states, labels=labels, vocab_size=self.config.vocab_size, softcap=None, **kwargs)
    else:
        logits = self.lm_head(_states)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
    return CausalLMOutputWithPast(loss=loss, logits=logits, ...)
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

import torch

from fusedops.conversion import UnknownClass
from fusedops.functions.common import Reduction
from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf.code import compiled
from fusedops.torch.conversion.hf.internals import can_return_tuple
from fusedops.torch.conversion.hf.loss import LanguageModel, averaged, causal_loss, shifted, undecorated
from fusedops.torch.nn.layer import unfused_input
from fusedops.torch.nn.linear import unfused_head, unfused_weight
from fusedops.torch.nn.plans import linear_loss, prepared

_STATES = "_states"  # the added variable


class WithoutLogits(LanguageModel):
    """Returns no logits in training with labels, if the head is a plain linear layer."""

    head_name: ClassVar[str]  # the attribute with the linear layer

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        head, forward = _rewritten_of(kind)
        return {**super().members(kind), "forward": can_return_tuple(forward), "head_name": head}

    def leaves_out_logits(self, states: torch.Tensor, labels: torch.Tensor | None) -> bool:
        head = getattr(self, self.head_name)
        if not self.training or labels is None or self.loss_function is not causal_loss:
            return False
        return unfused_head(head) is None and not (unfused_input(states) or unfused_weight(states, head.weight))

    def loss_of(
        self,
        states: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        *,
        softcap: float | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """`causal_loss` of the head's logits for the states."""
        head = getattr(self, self.head_name)
        states = prepared(states, head)
        labels = shifted(labels, ignore_index) if shift_labels is None else shift_labels
        rows, labels = states.reshape(-1, states.shape[-1]), labels.reshape(-1).to(states.device)

        def loss(reduction: Reduction) -> torch.Tensor:
            return linear_loss(
                head, rows, labels, ignore_index=ignore_index, reduction=reduction, softcap=softcap or 0.0
            )

        return averaged(loss, num_items_in_batch)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, arguments, *state = super().__reduce_ex__(protocol)
        return (_blank, arguments, *state)


def counterpart(kind: type) -> type:
    """The counterpart of a causal language model's class.

    Raises:
        UnknownClass: its forward uses the logits in an unknown way.
    """
    return _made(kind, vars(kind)["forward"])


@functools.cache
def _made(kind: type, forward: Any) -> type:
    return WithoutLogits.over(kind, "", {}, {})


def _blank(kind: type) -> Any:
    """An instance of the class's counterpart, or of the class if this version of transformers has none, for pickle."""
    try:
        return object.__new__(counterpart(kind))
    except (ImportError, AttributeError, UnknownClass, source.NoSource):
        return object.__new__(kind)


def note(model: LanguageModel, asked: bool) -> str | None:
    """The report's note on the logits of a converted model, or None. `asked` is convert's `fuse_loss`."""
    name = model.original.__name__
    try:
        reason = unfused_head(getattr(model, _rewritten_of(model.original)[0], None))
        reason = reason and f"its head {reason}"
    except (UnknownClass, source.NoSource) as error:
        reason = str(error)
    if reason:
        return f"the logits of {name} are computed in training: {reason}" if asked else None
    head = getattr(model, _rewritten_of(model.original)[0])
    size = 2 * head.out_features * head.weight.element_size() / 1000
    if asked:
        return f"{name} returns no logits in training with labels, which saves {size:,.0f} kB a token"
    return f"fuse_loss=True would leave out the logits of {name} in training: {size:,.0f} kB a token"


def _rewritten_of(kind: type) -> tuple[str, FunctionType]:
    return _rewritten(undecorated(kind))


@functools.lru_cache(64)
def _rewritten(function: FunctionType) -> tuple[str, FunctionType]:
    """The name of the head, and the function with the additional branch."""
    tree, line = source.tree_of(function)
    if function.__closure__ or not tree.args.args:
        raise UnknownClass("its forward uses variables of another function")
    model = tree.args.args[0].arg
    heads = (_Head.of(number, each, model) for number, each in enumerate(tree.body))
    head = next((each for each in heads if each is not None), None)
    if head is None:
        raise UnknownClass("its forward calls no head")
    softcap, loss, end = _up_to_the_loss(tree.body, head, model)
    rest = tree.body[end:]
    if not rest or sum(map(head.uses, rest)) != sum(_returned(rest[-1], head)):
        raise UnknownClass(f"its forward does more with {head.logits} than to return them")

    states = ast.Name(_STATES, ast.Load())
    call = copy.deepcopy(loss.value)
    assert isinstance(call, ast.Call)
    call.func = _expression(f"{model}.loss_of")
    call.args = [states if head.uses(each) else each for each in call.args]
    call.keywords = [each if not head.uses(each) else ast.keyword("states", states) for each in call.keywords]
    call.keywords.append(ast.keyword("softcap", softcap))
    own = copy.deepcopy(tree.body[head.number : end])
    own[0].value.args = [states]  # type: ignore[attr-defined]
    added = [
        ast.Assign([ast.Name(_STATES, ast.Store())], head.states),
        ast.If(
            _expression(f"{model}.leaves_out_logits({_STATES}, labels)"),
            [ast.Assign([ast.Name(head.logits, ast.Store())], ast.Constant(None)), ast.Assign(loss.targets, call)],
            own,
        ),
    ]
    for each in added:
        for node in ast.walk(each):
            if not hasattr(node, "lineno"):
                ast.copy_location(node, tree.body[head.number])
    made = copy.copy(tree)
    made.body, made.decorator_list = [*tree.body[: head.number], *added, *rest], []
    return head.name, compiled(made, line, function)


@dataclass(frozen=True)
class _Head:
    """The statement `logits = self.name(states)` and its position in the body."""

    number: int
    logits: str
    name: str
    states: ast.expr

    @staticmethod
    def of(number: int, statement: ast.stmt, model: str) -> _Head | None:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=logits)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name), args=[states], keywords=[]),
            ) if owner == model and logits.endswith("logits"):
                return _Head(number, logits, name, states)
        return None

    def uses(self, node: ast.AST) -> int:
        """The number of uses of the logits."""
        return sum(isinstance(each, ast.Name) and each.id == self.logits for each in ast.walk(node))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _up_to_the_loss(statements: Sequence[ast.stmt], head: _Head, model: str) -> tuple[ast.expr, ast.Assign, int]:
    """The expression of the logits' cap, the statement that computes the loss, and the position of the next one."""
    softcap = _expression("None")
    loss_function = f"{model}.loss_function"
    for number, statement in enumerate(statements[head.number + 1 :], head.number + 1):
        match statement:
            case ast.Assign(targets=[ast.Name(id="loss")], value=ast.Constant(value=None)):
                continue
            case ast.If(
                test=test, body=[ast.Assign(targets=[ast.Name()], value=ast.Call(func=called)) as loss], orelse=[]
            ):
                if ast.unparse(test) == "labels is not None" and ast.unparse(called) == loss_function:
                    return softcap, loss, number + 1
            case ast.If(test=ast.Compare(left=cap), body=body, orelse=[]):
                is_given = ast.unparse(statement.test) == f"{ast.unparse(cap)} is not None"
                if is_given and list(map(ast.unparse, body)) == _capped(head.logits, ast.unparse(cap)):
                    softcap = cap
                    continue
        line = ast.unparse(statement).splitlines()[0]
        raise UnknownClass(f"its forward does something with its logits that is not known: {line}")
    raise UnknownClass("its forward asks for no loss of its logits")


def _capped(logits: str, cap: str) -> list[str]:
    return [f"{logits} = {logits} / {cap}", f"{logits} = torch.tanh({logits})", f"{logits} = {logits} * {cap}"]


def _returned(statement: ast.stmt, head: _Head) -> list[bool]:
    """One flag for each argument of the returned call: True if it is the logits."""
    call = statement.value if isinstance(statement, ast.Return) else None
    given = [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else []
    return [isinstance(each, ast.Name) and each.id == head.logits for each in given]
