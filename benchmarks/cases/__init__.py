"""The cases: all measurements to make, in the order of the tables."""

from collections.abc import Iterator

from benchmarks.cases import attention, calls, elementwise, first_use, growth, models, optimizers, over_rows, products
from benchmarks.cases.case import Case


def all_cases() -> Iterator[Case]:
    """All cases, in the order of the tables."""
    yield from elementwise.stream()
    yield from elementwise.launch()
    yield from products.matmul()
    yield from products.linear()
    yield from products.grouped()
    yield from attention.attention()
    yield from attention.options()
    yield from attention.large_heads()
    yield from attention.decode()
    yield from over_rows.cases_over_rows()
    yield from first_use.first_use_cases()
    yield from growth.growth_cases()
    yield from elementwise.seeds()
    yield from calls.call_cases()
    yield from elementwise.cpu()
    yield from products.cpu()
    yield from attention.cpu()
    yield from models.keras()
    yield from models.transformers()
    yield from models.families()
    yield from models.generation()
    yield from models.steps()
    yield from optimizers.optimizers()
