from tests.helpers.elementwise import Expression

SPECIFICATION = Expression("shares", "exp(x - max(x)) / sum(exp(x - max(x)))", flat=0.01, slow=True)
