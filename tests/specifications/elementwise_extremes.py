from tests.helpers.elementwise import Expression, rows

# Values that several stages compute, and results of one element per row.
TEXT = "p = x * w; q = p + b; return q * p - max(q), max(q) - min(q) + sum(p)"
SPECIFICATION = Expression("extremes", TEXT, {"b": rows}, outputs=("y", "range"))
