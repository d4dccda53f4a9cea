"""softmax and attention. The shape of attention is batch, positions, heads, features; it is bound by arithmetic.

In decoding the shape is that of the keys, and the call is bound by reading keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.operators.record import Function, Input, Layout, Operator

HEAD = 128  # features of a head
GROUP = 4  # query heads per key head in decoding
BACKENDS = {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "math": "MATH"}


def _torch_softmax(torch: Any) -> Function:
    softmax = torch.nn.functional.softmax
    return lambda x: softmax(x, -1)


def _heads(case: Any) -> Layout:
    return Layout(case.shape, 2)


def _keys(case: Any) -> Layout:
    return Layout(case.shape, 0)


def _one_query(group: int) -> Callable[[Any], Layout]:
    """The layout of a query that has `group` heads for each key head."""

    def layout(case: Any) -> Layout:
        batch, _, heads, features = case.shape
        return Layout((batch, 1, group * heads, features), 0)

    return layout


def _decoding(name: str, group: int) -> Operator:
    return Operator(
        name,
        function="attention",
        inputs=(Input("q", _one_query(group)), Input("k", _keys), Input("v", _keys)),
        outputs={"out": _one_query(group)},
        operations=(4 * group, 0),  # per element of the keys: a product and a sum with the key, and with the value
        formula=lambda n: partial(n.attention, causal=False),
        torch=_of_backend(causal=False),
        torch_others=_backends(causal=False),
    )


def _of_backend(causal: bool, backend: str = "") -> Callable[[Any], Function]:
    """PyTorch's own attention by one of its backends, or by the one that it selects."""

    def build(torch: Any) -> Function:
        own = torch.nn.functional.scaled_dot_product_attention

        def attention(q: Any, k: Any, v: Any) -> Any:
            shared = k.shape[2] < q.shape[2]
            return own(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=shared).transpose(1, 2)

        if not backend:
            return attention
        chosen = getattr(torch.nn.attention.SDPBackend, backend)

        def attention_by_backend(q: Any, k: Any, v: Any) -> Any:
            with torch.nn.attention.sdpa_kernel(chosen):
                return attention(q, k, v)

        return attention_by_backend

    return build


def _backends(causal: bool) -> dict[str, Callable[[Any], Function]]:
    return {name: _of_backend(causal, backend) for name, backend in BACKENDS.items()}


def _attention(name: str, causal: bool) -> Operator:
    return Operator(
        name,
        function="attention",
        inputs=tuple(Input(x, _heads) for x in "qkv"),
        outputs={"out": _heads},
        options=lambda case: {"causal": causal},
        formula=lambda n: partial(n.attention, causal=causal),
        torch=_of_backend(causal),
        torch_others=_backends(causal),
        shape=lambda rows, columns: (1, rows, max(columns // HEAD, 1), HEAD),
        smallest=(1, 4, 1, 16),
    )


def _of_a_head(case: Any) -> Layout:
    return Layout(case.shape[2:3], 0)


def _with_option(option: str, *inputs: Input, causal: bool = True, **fixed: Any) -> Operator:
    """Attention with an option: further inputs, or a fixed argument that changes no result."""
    names = [x.name for x in inputs]
    options = {"causal": causal, **fixed}

    def formula(n: Any) -> Function:
        return lambda q, k, v, *more: n.attention(q, k, v, causal=causal, **dict(zip(names, more, strict=True)))

    ending = "_causal" if causal else ""
    return replace(
        _attention(f"attention_{option}{ending}", causal=causal),
        inputs=(*(Input(x, _heads) for x in "qkv"), *inputs),
        options=lambda case: options,
        formula=formula,
        torch=None,
        torch_others={},
        without=f"attention{ending}",
    )


def _of_scores(case: Any) -> Layout:
    _, positions, heads, _ = case.shape
    return Layout((1, heads, positions, positions), 1)


def _masked(torch: Any) -> Function:
    """PyTorch's own attention with a floating mask."""
    own = torch.nn.functional.scaled_dot_product_attention

    def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return own(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=bias).transpose(1, 2)

    return attention


def _flex(torch: Any) -> Function:
    """FlexAttention, compiled."""
    flex = torch.compile(import_module("torch.nn.attention.flex_attention").flex_attention, dynamic=False)

    def attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
        of_heads = bias[0]

        def add(score: Any, b: Any, head: Any, query: Any, key: Any) -> Any:
            return score + of_heads[head, query, key]

        return flex(*(x.transpose(1, 2) for x in (q, k, v)), score_mod=add).transpose(1, 2)

    return attention


def _with_bias(option: str, gradient: bool) -> Operator:
    """A bias [1, heads, positions, positions]."""
    bias = Input("bias", _of_scores, gradient=gradient, keyword=True)
    others = {"mask": _masked, "FlexAttention": _flex}
    return replace(_with_option(option, bias, causal=False), torch_others=others)


def _packed(function: Function) -> Function:
    """attention_varlen over the sequences of a batch."""
    arange, offsets = import_module("torch").arange, {}

    def attention(q: Any, k: Any, v: Any) -> Any:
        batch, positions = q.shape[:2]
        if q.device not in offsets:
            ends = arange(0, (batch + 1) * positions, positions, device=q.device)
            offsets[q.device] = ends.int()
        both = 2 * (offsets[q.device],)
        return function(*(x.flatten(0, 1) for x in (q, k, v)), *both).view(*q.shape[:-1], v.shape[-1])

    return attention


def _slopes(shape: tuple[int, ...]) -> np.ndarray:
    return 2.0 ** (-8 * np.arange(1, shape[0] + 1) / shape[0])


OPERATORS = (
    Operator(
        "softmax",
        inputs=(Input("x"),),
        moves=(2, 3),
        operations=(5, 4),
        formula=lambda n: n.softmax,
        expression="e = exp(x - max(x)); e / sum(e)",
        torch=_torch_softmax,
        liger=lambda ops: ops.LigerSoftmaxFunction.apply,
        quack=lambda quack: quack.softmax,
        floors=(1.06, 1.06),
        tf_calls=True,
    ),
    _attention("attention", causal=False),
    _attention("attention_causal", causal=True),
    _with_option("alibi", Input("alibi", _of_a_head, gradient=False, parameter=True, values=_slopes, keyword=True)),
    _with_option("sinks", Input("sinks", _of_a_head, keyword=True)),
    _with_option("offset", query_offset=0),
    _with_bias("bias", gradient=False),
    _with_bias("learned_bias", gradient=True),
    replace(_with_option("packed"), function="attention_varlen", adapted=_packed),
    _decoding("attention_decoding", GROUP),
    _decoding("attention_decoding_heads", 1),
)
