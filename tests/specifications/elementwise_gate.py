from tests.helpers.elementwise import Expression, rows

SPECIFICATION = Expression("gate", "silu(g) * u + scale * b", {"scale": lambda shape: (), "b": rows})
SPECIFICATION.rows_are_independent = False  # on a GPU, the number of rows determines the partial sums of b's gradient
