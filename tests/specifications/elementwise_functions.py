from tests.helpers.elementwise import Expression

# Every function of one element.
TEXT = """
a = abs(x) + 1
bounded = sin(x) + cos(y) + tanh(x) * sigmoid(y) + erf(x) + sqrt(a) / a
smooth = gelu(y) + gelu_tanh(x) + silu(y) + softplus(x)
powers = exp(-a) + log(a) + log1p(a) + expm1(-a) - rsqrt(a) * a ** 1.5 / (a + y * y)
pieces = where(x < y, min(x, y), max(x, 0.5 * y)) + floor(x) * sign(y) + relu(-x)
bounded + powers * pieces - smooth
"""
SPECIFICATION = Expression("functions", TEXT, least_rank=0, value_suites_only=True)
