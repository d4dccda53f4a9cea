from tests.helpers.elementwise import Expression, columns, rows

# A mask and integers beside floating inputs.
SPECIFICATION = Expression(
    "masked",
    "x * w * keep + where(keep, n, mean(x))",
    {"w": columns, "n": rows},
    integers={"keep": "bool", "n": "int64"},
)
