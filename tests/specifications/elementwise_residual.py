from tests.helpers.elementwise import Expression, columns

SPECIFICATION = Expression("residual", "s = x + r; y = s * w; return y, s", {"w": columns}, outputs=("y", "s"))
