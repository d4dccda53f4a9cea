from tests.helpers.elementwise import Expression, rows

SPECIFICATION = Expression("gate", "silu(g) * u + scale * b", {"scale": lambda shape: (), "b": rows})
