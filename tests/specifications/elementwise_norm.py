from tests.helpers.elementwise import Expression, columns

SPECIFICATION = Expression("norm", "x * rsqrt(mean(x * x) + 1e-6) * w", {"w": columns}, low_curvature_scale=100.0)
