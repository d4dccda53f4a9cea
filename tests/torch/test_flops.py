"""PyTorch: torch's FLOP counter counts fusedops's operators like torch's own."""

from __future__ import annotations

import itertools

import pytest


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("wanted", ["a", "b", "ab"])
@pytest.mark.parametrize("leading", ["none", "of a", "of both"])
def test_products(torch_backend, fo, leading, wanted, transpose_a, transpose_b):
    from torch.utils.flop_counter import FlopCounterMode

    torch = torch_backend.torch

    def matrix(name, rows, cols, transposed):
        shape = (cols, rows) if transposed else (rows, cols)
        batch = (2, 3) if leading == "of both" or (leading, name) == ("of a", "a") else ()
        return torch.randn(*batch, *shape, device=torch_backend.device, requires_grad=name in wanted)

    a, b = matrix("a", 5, 7, transpose_a), matrix("b", 7, 11, transpose_b)

    def counted(product):
        with FlopCounterMode(display=False) as counter:
            c = product()
            torch.autograd.grad(c, [x for x in (a, b) if x.requires_grad], torch.ones_like(c))
        return counter.get_total_flops()

    turned_a, turned_b = (x.mT if is_turned else x for x, is_turned in ((a, transpose_a), (b, transpose_b)))
    expected = counted(lambda: turned_a @ turned_b)
    assert expected > 0
    assert counted(lambda: fo.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)) == expected


def test_arguments_by_name(torch_cpu):
    """A graph may call the registered operator by argument names."""
    from torch.utils.flop_counter import FlopCounterMode

    torch = torch_cpu.torch
    a, b = torch.ones(5, 7), torch.ones(11, 7)
    with FlopCounterMode(display=False) as counter:
        torch.ops.fusedops.matmul(a, b, transpose_b=True)
        torch.ops.fusedops.matmul(a, b=b.mT)
    assert counter.get_total_flops() == 2 * 2 * 5 * 7 * 11


@pytest.mark.parametrize("call", ["plain", "dropout", "packed"])
def test_attention(torch_backend, fo, call):
    """Same as torch's formula for its own attention: all pairs, five products in the backward."""
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    torch = torch_backend.torch
    batch, queries, keys, heads, features, of_v = 2, 3, 5, 4, 8, 6
    q, k, v = ((batch, heads, t, d) for t, d in ((queries, features), (keys, features), (keys, of_v)))
    expected = sdpa_flop_count(q, k, v) + sdpa_backward_flop_count((batch, heads, queries, of_v), q, k, v)

    def tensor(positions, heads, features):
        return torch.randn(batch, positions, heads, features, device=torch_backend.device, requires_grad=True)

    inputs = tensor(queries, heads, features), tensor(keys, 2, features), tensor(keys, 2, of_v)
    with FlopCounterMode(display=False) as counter:
        if call == "packed":
            offsets = (
                torch.arange(batch + 1, device=torch_backend.device, dtype=torch.int32) * n for n in (queries, keys)
            )
            y = fo.attention_varlen(*(x.flatten(0, 1) for x in inputs), *offsets)
        else:
            y = fo.attention(*inputs, causal=True, dropout=0.5 if call == "dropout" else 0.0)
        y.sum().backward()
    assert counter.get_total_flops() == expected


def test_experts(torch_backend, fo):
    """As many as those of one expert for as many rows as there are pairs of tokens and experts."""
    from torch.utils.flop_counter import FlopCounterMode

    torch = torch_backend.torch

    def tensor(*shape):
        return torch.randn(*shape, device=torch_backend.device, requires_grad=True)

    def counted(y):
        with FlopCounterMode(display=False) as counter:
            y().sum().backward()
        return counter.get_total_flops()

    gate_up, down = tensor(4, 6, 5), tensor(4, 7, 3)
    rows = tensor(9 * 2, 5)
    expected = counted(lambda: (rows @ gate_up[0].mT)[:, :3] @ down[0].mT)
    index = torch.randint(4, (9, 2), device=torch_backend.device)
    assert counted(lambda: fo.experts(tensor(9, 5), index, tensor(9, 2), gate_up, down)) == expected
    offsets = torch.tensor([0, 5, 7, 7, 18], device=torch_backend.device, dtype=torch.int32)
    assert counted(lambda: fo.grouped_matmul(rows, gate_up, offsets)) == counted(lambda: rows @ gate_up[0].mT)
