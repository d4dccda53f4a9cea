"""The benchmark's record of each operator, in the file of its family."""

from benchmarks.operators import (
    activations,
    attention,
    dropout,
    elementwise,
    experts,
    expressions,
    float8,
    loss,
    models,
    normalization,
    products,
    rotary,
)
from benchmarks.operators.record import Operator

# In the order of the tables.
FAMILIES = (
    elementwise,
    normalization,
    dropout,
    attention,
    loss,
    activations,
    float8,
    expressions,
    rotary,
    products,
    experts,
    models,
)

OPERATORS: dict[str, Operator] = {operator.name: operator for family in FAMILIES for operator in family.OPERATORS}
ELEMENTWISE = tuple(operator for operator in OPERATORS.values() if operator.elementwise)
FLOAT8 = tuple(operator for operator in OPERATORS.values() if operator.in_8_bits)
OVER_ROWS = tuple(
    operator
    for operator in OPERATORS.values()
    if any(operator.moves) and not operator.elementwise and not operator.in_8_bits
)
