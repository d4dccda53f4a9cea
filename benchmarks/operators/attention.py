"""softmax, and attention: a case's shape is batch, positions, heads, features, and its work is arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.operators.record import Function, Input, Layout, Operator

HEAD = 128  # features


def _torch_softmax(torch: Any) -> Function:
    softmax = torch.nn.functional.softmax
    return lambda x: softmax(x, -1)


def _heads(case: Any) -> Layout:
    return Layout(case.shape, 2)


def _of_backend(causal: bool, backend: str = "") -> Callable[[Any], Function]:
    """PyTorch's own by one of its backends, or by the one that it takes."""

    def build(torch: Any) -> Function:
        own = torch.nn.functional.scaled_dot_product_attention

        def attention(q: Any, k: Any, v: Any) -> Any:
            return own(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)

        if not backend:
            return attention
        chosen = getattr(torch.nn.attention.SDPBackend, backend)

        def attention_by_backend(q: Any, k: Any, v: Any) -> Any:
            with torch.nn.attention.sdpa_kernel(chosen):
                return attention(q, k, v)

        return attention_by_backend

    return build


def _attention(name: str, causal: bool) -> Operator:
    backends = {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "math": "MATH"}
    return Operator(
        name,
        function="attention",
        inputs=tuple(Input(x, _heads) for x in "qkv"),
        outputs={"out": _heads},
        options=lambda case: {"causal": causal},
        formula=lambda n: partial(n.attention, causal=causal),
        torch=_of_backend(causal),
        torch_others={backend: _of_backend(causal, torch) for backend, torch in backends.items()},
        shape=lambda rows, columns: (1, rows, max(columns // HEAD, 1), HEAD),
        smallest=(1, 4, 1, 16),
    )


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
)
