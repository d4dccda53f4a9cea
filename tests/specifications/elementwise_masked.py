from tests.helpers.elementwise import Expression, columns, rows

# A mask and integers as inputs, in addition to floating ones.
SPECIFICATION = Expression(
    "masked",
    "x * w * keep + where(keep, n, mean(x))",
    {"w": columns, "n": rows},
    integers={"keep": "bool", "n": "int64"},
)
