"""Norms of queries and keys right before their rotary embedding, in one pass with it.

The counterpart's `forward` is the attention's own code, in which the rotary function gets the norms, too:

    query_states = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
    key_states = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
    query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)

becomes

    query_states = self.q_proj(hidden_states).view(shape).transpose(1, 2)
    key_states = self.k_proj(hidden_states).view(shape).transpose(1, 2)
    query_states, key_states = _normed_rotary(self.q_norm, self.k_norm, True, query_states, key_states, cos, sin)
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from fusedops.torch.conversion import source
from fusedops.torch.conversion.hf.code import compiled
from fusedops.torch.conversion.hf.norms import RMSNorm
from fusedops.torch.conversion.hf.residual import can_add
from fusedops.torch.internals import is_watched
from fusedops.torch.nn.plans import has_summed_gradients, sum_gradients

NAME = "_normed_rotary"  # the function's global name


def with_norms(forward: FunctionType, rotary: str) -> FunctionType | None:
    """The function in which NAME gets the norms of the queries and keys of `rotary`; None if it has no such norms."""
    try:
        tree, line = source.tree_of(forward)
    except source.NoSource:
        return None
    if forward.__closure__ or not tree.args.args:
        return None
    made = copy.deepcopy(tree)
    made.decorator_list = []
    module = tree.args.args[0].arg
    for number, statement in enumerate(made.body):
        match statement:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=q), ast.Name(id=k)])],
                value=ast.Call(func=ast.Name(id=name), args=[ast.Name(id=given_q), ast.Name(id=given_k), *_]) as call,
            ) if name == rotary and (q, k) == (given_q, given_k):
                q_norm, k_norm = (_Norm.of(made.body[:number], name, module) for name in (q, k))
                if q_norm is None or k_norm is None or q_norm.is_transposed != k_norm.is_transposed:
                    return None
                q_norm.statement.value, k_norm.statement.value = q_norm.value, k_norm.value
                call.func = ast.Name(NAME, ast.Load())
                call.args = [q_norm.module, k_norm.module, ast.Constant(q_norm.is_transposed), *call.args]
                for added in (call.func, call.args[2]):
                    ast.copy_location(added, statement)
                return compiled(made, line, forward)
    return None


@dataclass(frozen=True)
class _Norm:
    """The statement that assigns a normalized value."""

    statement: ast.Assign
    module: ast.expr
    value: ast.expr  # without the norm
    is_transposed: bool  # afterwards

    @staticmethod
    def of(statements: list[ast.stmt], name: str, module: str) -> _Norm | None:
        """The last statement that mentions the variable, if it assigns the result of a norm."""
        last = next((each for each in reversed(statements) if name in _names(each)), None)
        match last:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                pass
            case _:
                return None
        match value:
            case ast.Call(
                func=ast.Attribute(value=normed, attr="transpose") as turned,
                args=[ast.Constant(value=1), ast.Constant(value=2)],
                keywords=[],
            ):
                is_transposed = True
            case _:
                normed, is_transposed = value, False
        match normed:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=attr) as norm, args=[x], keywords=[]) if (
                owner == module and "norm" in attr
            ):
                if not is_transposed:
                    return _Norm(last, norm, x, False)
                turned.value = x
                return _Norm(last, norm, value, True)
        return None


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def fused(read: Callable[..., Any], rotate: Callable[..., Any], rotary: Callable[..., Any]) -> Callable[..., Any]:
    """The function NAME.

    Args:
        read: reads a call, as those of `rotary._CALLS`.
        rotate: the kernel, a `rotary._Rotate`.
        rotary: rotates what the kernel does not normalize.
    """

    def apply(q_norm: Any, k_norm: Any, is_transposed: bool, q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        call = read(q, k, *args, **kwargs)
        are_whole = call and len(call[0]) == 2 and call[0][0] is q and call[0][1] is k
        if are_whole and _takes(q_norm, q) and _takes(k_norm, k):
            rotated = rotate(*call[:-1], norms=(q_norm, k_norm))
            if rotated is not None:
                for norm in (q_norm, k_norm):
                    if has_summed_gradients(norm):
                        sum_gradients(norm)
                return call[-1](*rotated)
        if is_transposed:
            q, k = q_norm(q.transpose(1, 2)).transpose(1, 2), k_norm(k.transpose(1, 2)).transpose(1, 2)
        else:
            q, k = q_norm(q), k_norm(k)
        return rotary(q, k, *args, **kwargs)

    return apply


def _takes(norm: Any, x: torch.Tensor) -> bool:
    if not isinstance(norm, RMSNorm) or not can_add(norm) or (is_watched(norm) and not has_summed_gradients(norm)):
        return False
    return norm.why_not(x) is None
