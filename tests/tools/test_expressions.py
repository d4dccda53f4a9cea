"""Expressions without a framework: accepted and refused texts, the resulting programs, and their derivatives."""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import shutil
import subprocess
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusedops.expressions import Expression, packed
from fusedops.expressions.graph import FUSED, OPERATIONS
from fusedops.expressions.program import NUMBER, OPTIONAL, TENSOR
from tests.helpers.expressions import evaluate, numeric_gradients, operand_count, reference

RMS_NORM = "x * rsqrt(mean(x * x) + 1e-6) * w"
SOFTMAX = "exp(x - max(x)) / sum(exp(x - max(x)))"
LAYER_NORM = "d = x - mean(x); d * rsqrt(mean(d * d) + 1e-5) * w + b"
# x has rows, w is one row, b has one number per row, s is a number.
EXPRESSIONS = [
    "x * w",
    "silu(x) * w",
    "gelu(x + w) * b",
    "gelu_tanh(x + w) * b",
    "relu(x) - relu(-w) / 3",
    "softplus(x) * w + log1p(x * x)",
    "tanh(x) + sin(w) * cos(b) - expm1(x / 4)",
    "erf(x) * sigmoid(w)",
    "where(x < w, x * b, w ** 2)",
    "where((x >= 0) * (w != b), sqrt(abs(x)), -x)",
    "min(x, w) * max(x, b)",
    "max(min(x, 1), -1) * w",
    "(1 + x * x) ** w + 2 ** x",
    "(2 + sin(x)) ** 3 + (2 + sin(x)) ** -1 + (2 + cos(x)) ** 0.5 - (2 + x * x) ** -0.5 + (2 + x * x) ** 1.7",
    "floor(x * 3) * w + sign(x) * x + (x == w) * 2 + (x > b) * x",
    "log(exp(x) + exp(w)) / (1 + b * b)",
    "x * s + b / (2 + s)",
    "s * sum(x * s) + mean(x) * max(x) - min(x * w)",
    RMS_NORM,
    SOFTMAX,
    LAYER_NORM,
    "m = max(x)\nm + log(sum(exp(x - m)))",
    "a = silu(x)\na = a * w\nreturn a, a + b, mean(a)",
    "return sum(x) * w, exp(mean(x * s) * b)",
    "n = x * rsqrt(sum(x * x) + 1); k = w * rsqrt(sum(w * w) + 1); sum(n * k) * b",
    "mean(mean(x) * x - mean(w * mean(x * x))) * x",
    "sum(s) * x + sum(mean(x)) * w + mean(sum(2 * w)) + max(mean(x) * s)",
    "-x - -w - (-(x * w)) / -b ** 2 * pi - e ** -x",
]
NUMBERS = {"x": False, "w": False, "b": False, "s": True}


def inputs_of(expression, random):
    shapes = {"x": (3, 5), "w": (5,), "b": (3, 1), "s": ()}
    return [random.normal(size=shapes[name]) + 0.1 for name in expression.inputs]


def random_like(results, random):
    return [random.normal(size=result.shape) for result in results]


def defined(text):
    expression = Expression(text)
    return expression, expression.definition(tuple(NUMBERS[name] for name in expression.inputs))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_program_and_derivatives(text, random):
    check(text, random)


def check(text, random):
    """The results are those of the text as Python code, and two derivatives are central differences."""
    expression, forward = defined(text)
    arrays = inputs_of(expression, random)
    results = evaluate(forward, arrays)
    python = reference(text, expression.inputs, [result.of_rows for result in forward.results])
    for got, expected in zip(results, python(*arrays), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
    upstream = random_like(results, random)
    backward = forward.backward()
    gradients = evaluate(backward, [*arrays, *upstream])
    close(gradients, numeric_gradients(python, arrays, upstream))

    second = random_like(gradients, random)
    twice = backward.backward()
    values = [*arrays, *upstream]
    numeric = numeric_gradients(lambda *values: evaluate(backward, values), values, second)
    close(evaluate(twice, [*values, *second]), numeric)
    for absent in range(len(second)):
        some = [None if i == absent else value for i, value in enumerate(second)]
        zeroed = [np.zeros_like(value) if i == absent else value for i, value in enumerate(second)]
        for got, expected in zip(evaluate(twice, [*values, *some]), evaluate(twice, [*values, *zeroed]), strict=True):
            np.testing.assert_array_equal(got, expected)


def close(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7 * (1 + np.abs(other).max(initial=0)))


def test_third_derivative(random):
    _, forward = defined(RMS_NORM)
    second = forward.backward().backward()
    arrays = [random.normal(size=(5,) if input.name == "w" else (3, 5)) for input in second.inputs]
    arrays = [
        random.normal(size=(5,)) if name.endswith("w") else a for a, name in zip(arrays, names(second), strict=True)
    ]
    results = evaluate(second, arrays)
    upstream = random_like(results, random)
    numeric = numeric_gradients(lambda *values: evaluate(second, values), arrays, upstream)
    close(evaluate(second.backward(), [*arrays, *upstream]), numeric)


def names(definition):
    return [input.name for input in definition.inputs]


LEAVES = st.sampled_from(["x", "w", "b", "s", "0.5", "2"])
SMOOTH = ["tanh({0})", "sigmoid({0})", "sin({0})", "softplus({0})", "gelu({0})", "gelu_tanh({0})", "silu({0})"]
SMOOTH += [
    "erf({0})",
    "log1p({0} * {0})",
    "rsqrt(1 + {0} * {0})",
    "exp(tanh({0}))",
    "-({0})",
    "mean({0})",
    "sum(sin({0}))",
]
SMOOTH += ["max({0})", "sqrt(1 + {0} ** 2)", "mean(({0}) * x)", "(2 + sin({0})) ** 1.5", "abs({0} + 3)"]
PAIRS = ["({0} + {1})", "({0} - {1})", "({0} * {1})", "{0} / (2 + sin({1}))", "where({0} < {1}, {0}, x * {1})"]
PAIRS += ["min({0}, {1} + 0.01)", "max({0}, {1} + 0.01)", "(1.5 + sin({0})) ** tanh({1})"]
# Branches that are not taken, with values and slopes that are NaN.
PAIRS += ["where({0} > 99, log({0} - 99), {1})", "where({1} < 99, {0}, sqrt({1} - 99))"]
PAIRS += ["where({0} > 99, {0} / sum(relu({1} - 99)), {1})"]


def grown(inner):
    one = st.builds(str.format, st.sampled_from(SMOOTH), inner)
    return one | st.builds(str.format, st.sampled_from(PAIRS), inner, inner)


@given(text=st.recursive(LEAVES, grown, max_leaves=5), seed=st.integers(0, 99))
def test_random_expressions(text, seed):
    check(f"{text} + 0 * x", np.random.default_rng(seed))


def test_stages():
    """A reduction waits for those that it needs, and only for these."""
    forward = Expression(SOFTMAX).definition()
    assert [OPERATIONS[i.op] for i in forward.program.stages[0]] == ["input"]
    assert [(r.kind, r.stage) for r in forward.program.reductions] == [(2, 0), (0, 1)]
    forward = Expression("sum(x) + mean(x * x) + max(x - min(x))").definition()
    assert sorted((r.kind, r.stage) for r in forward.program.reductions) == [(0, 0), (1, 0), (2, 1), (3, 0)]
    forward = Expression("x + 1").definition()
    assert len(forward.program.stages) == 1 and not forward.program.reductions
    last = Expression("s * mean(x)").definition((True, False)).program
    assert len(last.stages) == 2 and [OPERATIONS[i.op] for i in last.stages[1]] == ["input", "reduced", "mul"]


@given(text=st.recursive(LEAVES, grown, max_leaves=6), seed=st.integers(0, 3))
def test_a_value_has_one_form_in_all_stages(text, seed):
    """A product and a sum are rounded together in each stage that computes them, or in none."""
    product = ("x * w", "x * b", "w * s", "x * x")[seed]
    _, definition = defined(f"p = {product}; q = p + {text}; return q * p - max(q), q - min(q) * sum(q * x), p")
    for _ in range(3):
        forms: dict[str, str] = {}
        for written, form in values(definition.program):
            assert forms.setdefault(written, form) == form
        definition = definition.backward()


def values(program):
    """Each value of each stage: as separate operations, and as the program computes it."""
    for code in program.stages:
        found = []
        for i in code:
            op = OPERATIONS[i.op]
            if op in ("input", "constant", "reduced"):
                leaf = digest(op, [str(i.a), str(i.value)])
                found.append((leaf, leaf))
            else:
                written, form = zip(*(found[place] for place in (i.a, i.b, i.c)[: operand_count(op)]), strict=True)
                found.append((separate(op, written), digest(op, form)))
        yield from found


def separate(op, operands):
    if op in FUSED:
        product, other = separate("mul", operands[:2]), operands[2]
        return separate("add" if op == "fma" else "sub", [other, product] if op == "fnma" else [product, other])
    return digest(op, sorted(operands) if op == "add" else operands)


def digest(op, operands):
    return hashlib.sha256(f"{op}({', '.join(operands)})".encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("text", "derivative"),
    [
        ("x * w", "dx = sum_to(dy * w, x)\ndw = sum_to(dy * x, w)\nreturn dx, dw"),
        (
            RMS_NORM,
            """\
            t0 = rsqrt(mean(x * x) + 1e-06)
            t1 = dy * w
            dx = sum_to(t1 * t0 - mean(t1 * x) * t0 * t0 * t0 * x, x)
            dw = sum_to(dy * (x * t0), w)
            return dx, dw""",
        ),
        (
            SOFTMAX,
            """\
            t0 = exp(x - max(x))
            t1 = sum(t0)
            sum_to((dy / t1 - sum(dy * t0) / t1 / t1) * t0, x)""",
        ),
        (
            LAYER_NORM,
            """\
            t0 = x - mean(x)
            t1 = rsqrt(mean(t0 * t0) + 1e-05)
            t2 = dy * w
            dx = sum_to(t2 * t1 - mean(t2 * t0) * t1 * t1 * t1 * t0 - mean(t2) * t1, x)
            dw = sum_to(dy * (t0 * t1), w)
            db = sum_to(dy, b)
            return dx, dw, db""",
        ),
        (
            "gelu_tanh(x + b) * u",
            """\
            t0 = x + b
            t1 = min(t0 * t0, 1000)
            t2 = t0 * (1.5957691216057308 + 0.07135481627260025 * t1)
            t3 = sigmoid(t2)
            t4 = dy * u * (t3 + t0 * (t3 * sigmoid(-t2)) * (1.5957691216057308 + 0.21406444881780073 * t1))
            dx = sum_to(t4, x)
            db = sum_to(t4, b)
            du = sum_to(dy * gelu_tanh(t0), u)
            return dx, db, du""",
        ),
        ("sign(x)", "sum_to(0, x)"),
        ("softplus(x)", "sum_to(dy * sigmoid(x), x)"),
    ],
)
def test_derivatives_are_short(text, derivative):
    assert Expression(text).derivative == textwrap.dedent(derivative)


@pytest.mark.parametrize("text", [text for text in EXPRESSIONS if "gelu(" not in text])  # it has the normal cdf
def test_text_is_an_expression(text):
    """The text written from a graph means the same."""
    expression, forward = defined(text)
    numbers = tuple(NUMBERS[name] for name in expression.inputs)
    again = Expression(forward.text, inputs=expression.inputs).definition(numbers)
    random = np.random.default_rng(0)
    arrays = inputs_of(expression, random)
    for one, other in zip(evaluate(forward, arrays), evaluate(again, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_special_values():
    """Gradients at kinks and ties, and of the branch that where() does not select."""

    def gradients(text, *arrays):
        backward = Expression(text).definition().backward()
        return [g.tolist() for g in evaluate(backward, [*map(np.array, arrays), np.ones(len(arrays[0]))])]

    nan = np.nan
    assert gradients("relu(x)", [-1.0, 0.0, 2.0]) == [[0, 0, 1]]
    assert gradients("abs(x)", [-1.0, 0.0, 2.0]) == [[-1, 0, 1]]
    assert gradients("max(x, y)", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == [[0, 0.5, 1], [1, 0.5, 0]]
    assert gradients("min(x, y)", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == [[1, 0.5, 0], [0, 0.5, 1]]
    assert gradients("max(x)", [1.0, 3.0, 3.0]) == [[0, 0.5, 0.5]]
    assert gradients("min(x)", [1.0, 3.0, 3.0]) == [[1, 0, 0]]
    assert gradients("where(x > 0, y, x)", [-1.0, 0.0, 2.0], [nan, nan, 3.0]) == [[1, 1, 0], [0, 0, 1]]
    assert gradients("x ** y", [0.0, 0.0, 2.0], [0.0, 2.0, 1.0]) == [[0, 0, 1], [0, 0, 2 * np.log(2)]]
    assert gradients("floor(x) + (x > 1) + sign(x)", [0.5, 1.0, 1.5]) == [[0, 0, 0]]
    assert np.isnan(evaluate(Expression("0 * x + relu(x)").definition(), [np.array([nan, np.inf])])[0]).all()
    for text in ("sigmoid(x)", "tanh(x)", "softplus(-x)"):  # no cancellation for large arguments
        assert all(0 < abs(g) < 1e-12 for g in gradients(text, [40.0, 100.0, 300.0])[0]), text


def test_names():
    def of(text, **options):
        forward = Expression(text, **options).definition()
        backward = forward.backward()
        return [names(forward), [r.name for r in forward.results], names(backward), [r.name for r in backward.results]]

    assert of("x * w") == [["x", "w"], ["y"], ["x", "w", "dy"], ["dx", "dw"]]
    assert of("y * dy") == [["y", "dy"], ["y_2"], ["y", "dy", "dy_2"], ["dy_3", "ddy"]]
    assert of("a = x * 2; return a, x, a + 1") == [
        ["x"],
        ["a", "y1", "y2"],
        ["x", "da", "dy1", "dy2"],
        ["dx"],
    ]
    assert of("return a, a")[1] == ["y0", "y1"]
    assert of("y1 = x; x = 2 * y1; return y1, x + y1")[1] == ["y1", "y1_2"]
    assert of("x * need_dx")[3] == ["dx_2", "dneed_dx"]
    assert of("e * pi", inputs=["pi", "e"])[0] == ["pi", "e"]
    assert of("e = exp(x); e / pi")[0] == ["x"]
    for text in (*EXPRESSIONS, "y * dy * ddy * dx * x", "d * dd * ddd"):
        definition = Expression(text).definition()
        for _ in range(3):
            definition = definition.backward()
            results = [result.name for result in definition.results]
            all_names = [*names(definition), *results, *(f"need_{name}" for name in results)]
            assert len(set(all_names)) == len(all_names) and all(map(str.isidentifier, all_names))
            if definition.backward_name is None:
                break


def test_definitions():
    forward = Expression(RMS_NORM, name="rms").definition()
    assert forward.name == Expression(RMS_NORM.replace("* w", " *w"), name="rms").definition().name
    assert forward.name.startswith("rms_") and len(forward.name) == len("rms_") + 16
    others = [Expression(RMS_NORM), Expression(RMS_NORM, ["w", "x"], "rms"), Expression("x * w * 2", name="rms")]
    assert len({forward.name, *(other.definition().name for other in others)}) == 4
    number = Expression(RMS_NORM, name="rms").definition((False, True))
    assert number.name != forward.name and [input.kind for input in number.inputs] == [TENSOR, NUMBER]
    assert not forward.needs and {result.like for result in forward.results} == {None}
    backward = forward.backward()
    assert backward is forward.backward() and backward.name == forward.backward_name == f"{forward.name}_backward"
    assert backward.needs and [result.like for result in backward.results] == [0, 1]
    assert [input.kind for input in backward.inputs] == [TENSOR, TENSOR, TENSOR]
    assert [input.kind for input in backward.backward().inputs] == [TENSOR] * 3 + [OPTIONAL] * 2
    several = Expression("return x, x * 2").definition().backward()
    assert [input.kind for input in several.inputs] == [TENSOR, OPTIONAL, OPTIONAL]


def test_no_derivative_of_too_many_inputs():
    text = "s = a * b * c * d * f * g * h * i; return s, s + 1, s + 2, s + 3"
    definition = Expression(text).definition().backward().backward()
    assert definition.backward_name is None
    with pytest.raises(ValueError, match="a derivative must have at most 24 inputs; got more"):
        definition.backward()


def test_expression():
    expression = Expression(RMS_NORM, name="rms")
    assert (expression.text, expression.inputs, expression.results) == (RMS_NORM, ("x", "w"), 1)
    again = pickle.loads(pickle.dumps(expression))
    assert again.definition().name == expression.definition().name and repr(again) == repr(expression)
    assert expression.source.count("struct Program") == 2
    with pytest.raises(ValueError, match="one of the inputs must be a tensor; got numbers for x, w"):
        expression.definition((True, True))


def test_structs():
    forward = Expression(SOFTMAX).definition()
    backward = forward.backward()
    assert packed(forward).backward.decode() == backward.name and packed(forward).gradients[0] == b"dx"
    struct = packed(backward)
    assert struct.name.decode() == backward.name and struct.backward is None
    assert struct.source.decode() == backward.source and struct.needs == 1
    assert [(struct.input[i].name.decode(), struct.input[i].kind) for i in range(struct.inputs)] == [
        (input.name, input.kind) for input in backward.inputs
    ]
    assert [(struct.result[i].name.decode(), struct.result[i].like) for i in range(struct.results)] == [("dx", 0)]
    program = backward.program
    got = [(r.kind, r.stage, r.value) for r in (struct.reduction[i] for i in range(struct.reductions))]
    assert got == [(r.kind, r.stage, r.value) for r in program.reductions]
    assert [struct.stage_size[i] for i in range(struct.stages)] == list(map(len, program.stages))
    code = [instruction for stage in program.stages for instruction in stage]
    assert [(struct.code[i].op, struct.code[i].value) for i in range(len(code))] == [(i.op, i.value) for i in code]
    assert ctypes.sizeof(struct._fields_[10][1]._type_) == 24
    assert Expression("x * 2").definition().results[0].like is None
    assert packed(Expression("x * 2").definition()).result[0].like == -1


REFUSED = {
    "silu(g) *": "expected an operand after '*' at column 9 of line 1\n    silu(g) *\n            ^",
    "x +* y": "expected an operand after '+', not '*', at column 4 of line 1\n    x +* y\n       ^",
    "+x": "expected an operand before '+' at column 1 of line 1\n    +x\n    ^",
    "": "expected an expression at column 1 of line 1\n    \n    ^",
    " \n ;": "expected an expression at column 3 of line 2\n     ;\n      ^",
    "# x": "expected an expression at column 4 of line 1\n    # x\n       ^",
    "x y": "expected an operator before 'y' at column 3 of line 1\n    x y\n      ^",
    "2x": "expected an operator after the number 2 at column 2 of line 1\n    2x\n     ^",
    "exp(x)(y)": "expected an operator before '(' at column 7 of line 1\n    exp(x)(y)\n          ^",
    "y +\nx": "expected an operand after '+' at column 3 of line 1\n    y +\n      ^",
    "y = x;\ny * (x;2)": "this '(' is never closed at column 5 of line 2\n    y * (x;2)\n        ^",
    "exp(x": "the '(' of 'exp' is never closed at column 1 of line 1\n    exp(x\n    ^",
    "x)": "this ')' has no '(' at column 2 of line 1\n    x)\n     ^",
    "exp()": "the function 'exp' must have 1 argument at column 1 of line 1; got 0\n    exp()\n    ^",
    "x*max(x,x,x)": "'max' must have 1 or 2 arguments at column 3 of line 1; got 3\n    x*max(x,x,x)\n      ^",
    "sum(x, axis=0)": "'=' at column 12 of line 1; arguments have no names\n    sum(x, axis=0)\n               ^",
    "x < y < z": "must not be chained at column 7 of line 1; write (a < b) * (b < c)\n    x < y < z\n          ^",
    "foo(x)": "unknown function 'foo' at column 1 of line 1; there are abs, cos, erf, exp, expm1, floor, gelu,",
    "clamp(x, 0, 1)": "unknown function 'clamp' at column 1 of line 1; write min(max(x, low), high)",
    "y + maximum(x, 0)": "unknown function 'maximum' at column 5 of line 1; write max(a, b)\n    y + maximum(x, 0)",
    "minimum(x, 0)": "unknown function 'minimum' at column 1 of line 1; write min(a, b)\n    minimum(x, 0)",
    "pow(x, 2)": "unknown function 'pow' at column 1 of line 1; write a ** b\n    pow(x, 2)",
    "exp * 2": "the function 'exp' must have arguments at column 1 of line 1\n    exp * 2\n    ^",
    "exp = x": "the function 'exp' must not be assigned at column 1 of line 1\n    exp = x\n    ^",
    "x = y = z": "'=' at column 7 of line 1; it must follow a name that begins a statement\n    x = y = z\n          ^",
    "x += 1": "expected an operand after '+', not '=', at column 4 of line 1\n    x += 1\n       ^",
    "x; y": "a value without a name must come last at column 1 of line 1\n    x; y\n    ^",
    "x, y": "',' at column 2 of line 1; several results are written as: return a, b\n    x, y\n     ^",
    "(x, y)": "',' at column 3 of line 1; it must be between arguments or results\n    (x, y)\n      ^",
    "return": "expected an operand after 'return' at column 1 of line 1\n    return\n    ^",
    "return x,": "expected an operand after ',' at column 9 of line 1\n    return x,\n            ^",
    "return x, y; x": "a value without a name must come last at column 1 of line 1",
    "return a,b,c,d,f": "at most 4 results at column 15 of line 1; got more\n    return a,b,c,d,f\n                  ^",
    "a*b*c*d*f*g*h*i*j": "at most 8 inputs at column 17 of line 1; got more",
    "x" + "*x" * 501: "at most 500 operations at column",
    "x" * 10_001: "an expression must have at most 10000 characters; got 10001",
    "1 + 2": "an expression must have an input; got none",
    "__import__('os').system('x')": "unknown function '__import__' at column 1 of line 1",
    "x.__class__": "unexpected '.' at column 2 of line 1\n    x.__class__\n     ^",
    "x[0]": "unexpected '[' at column 2 of line 1\n    x[0]\n     ^",
    "'x'": 'unexpected "\'" at column 1 of line 1',
    'f"{x}"': "unexpected '\"' at column 2 of line 1",
    "(y := x)": "unexpected ':' at column 4 of line 1",
    "{x}": "unexpected '{' at column 1 of line 1",
    "x^2": "unexpected '^' at column 2 of line 1; write a power as x ** 2\n    x^2\n     ^",
    "x % 2": "unexpected '%' at column 3 of line 1",
    "x // 2": "expected an operand after '/', not '/', at column 4 of line 1",
    "lambda x: x": "unexpected word 'lambda' at column 1 of line 1\n    lambda x: x\n    ^",
    "x if y else z": "unexpected word 'if' at column 3 of line 1; where(c, a, b) chooses\n    x if y else z\n      ^",
    "import os": "unexpected word 'import' at column 1 of line 1",
    "x * None": "unexpected word 'None' at column 5 of line 1",
    "\u0445 * 2": "unexpected U+0445 (cyrillic small letter ha) at column 1 of line 1\n    \u0445 * 2\n    ^",
    "x\u00a0* 2": "unexpected U+00A0 (no-break space) at column 2 of line 1\n    x * 2\n     ^",
    "x * \u00b2": "unexpected U+00B2 (superscript two) at column 5 of line 1",
    "x\0": "unexpected U+0000 at column 2 of line 1\n    x\n     ^",
    "\x1b[31mx": "unexpected U+001B at column 1 of line 1\n     [31mx\n    ^",
    "\ud800": "unexpected U+D800 at column 1 of line 1",
    "(" * 9000: "expected an operand after '(' at column 9000 of line 1",
    " " * 300 + "x y" + " " * 300: f"at column 303 of line 1\n    {' ' * 48}x y\n    {' ' * 50}^",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:20]))
def test_refused(text):
    with pytest.raises(ValueError) as error:
        Expression(text)
    message = str(error.value)
    assert message.startswith("fusedops.elementwise: ") and REFUSED[text] in message
    assert len(message) < 600


@given(st.text(alphabet="xyew12 .,;=<>!+-*/()#\n\0'[]é", max_size=30))
def test_any_text_is_an_expression_or_a_value_error(text):
    """Any text is an expression or raises a ValueError, never another error."""
    try:
        expression = Expression(text)
    except ValueError as error:
        assert str(error).startswith("fusedops.elementwise: ")
    else:
        packed(expression.definition().backward())


def test_nesting(random):
    x = random.normal(size=3)
    for text in ("(" * 4900 + "x" + ")" * 4900, "-" * 500 + "x", "1 + -" * 249 + "x", "tanh(" * 500 + "x" + ")" * 500):
        backward = Expression(text).definition().backward()
        assert np.isfinite(evaluate(backward, [x, x])[0]).all()
        packed(backward.backward())
        assert backward.text
    squares = "x = x * x * 0.5\n" * 200 + "mean(x) * x"
    assert Expression(squares).definition().backward().text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inputs": ["x"]}, "unknown input 'w' at column 5 of line 1; there are x\n    x * w\n        ^"),
        ({"inputs": ["x", "w", "z"]}, "the input 'z' is not used in the expression"),
        ({"inputs": ["x", "x"]}, "the inputs must have different names; got 'x' twice"),
        ({"inputs": ["x", "1"]}, "no function or word of Python; got '1'"),
        ({"inputs": ["exp"]}, "no function or word of Python; got 'exp'"),
        ({"inputs": ["class"]}, "no function or word of Python; got 'class'"),
        ({"inputs": ["\u0445"]}, "no function or word of Python; got '\u0445'"),
        ({"inputs": []}, "inputs must be at least one name and at most 8; got 0"),
        ({"name": "a b"}, "name must be a letter and at most 63 letters, digits and underscores; got 'a b'"),
        ({"name": ""}, "got ''"),
        ({"name": "é"}, "got 'é'"),
        ({"inputs": "xw"}, "inputs must be a list of names; got 'xw'"),
        ({"inputs": [1]}, "inputs must be a list of names; got [1]"),
        ({"name": 1}, "name must be a string; got int"),
    ],
    ids=str,
)
def test_options_refused(options, sentence):
    with pytest.raises((TypeError, ValueError)) as error:
        Expression("x * w", **options)
    assert str(error.value).startswith("fusedops.elementwise: ") and sentence in str(error.value)


def test_text_must_be_a_string():
    with pytest.raises(TypeError, match="expression must be a string; got bytes"):
        Expression(b"x")


HARNESS = """
#include <cmath>
#include <cstdio>
#define FN inline
enum Kind { kSum, kMean, kMax, kMin };
struct Reduction { Kind kind; int stage; };
template <class A> A rsqrt_(A x) { return A(1) / std::sqrt(x); }
template <class A> A sigmoid_(A x) { return A(1) / (A(1) + std::exp(-x)); }
template <class A> A cdf_(A x) { return std::erfc(-x / std::sqrt(A(2))) / 2; }
template <class A> A pdf_(A x) { return std::exp(-x * x / 2) / std::sqrt(A(2) * A(M_PI)); }
template <class A> A sign_(A x) { return A(x > 0) - A(x < 0); }
template <class A> A where_(A c, A a, A b) { return c != 0 ? a : b; }
template <class A> A min_(A a, A b) { return a < b ? a : b; }
template <class A> A max_(A a, A b) { return a > b ? a : b; }
template <class A> A add_(A a, A b) { return a + b; }
template <class A> A sub_(A a, A b) { return a - b; }
template <class A> A mul_(A a, A b) { return a * b; }
template <class A> A div_(A a, A b) { return a / b; }
template <class A> A fma_(A a, A b, A c) { return a * b + c; }
template <class A> A pow_(A a, A b) { return std::pow(a, b); }
#define STD(name, of) template <class A> A name(A x) { return std::of(x); }
STD(exp_, exp) STD(log_, log) STD(log1p_, log1p) STD(expm1_, expm1) STD(sqrt_, sqrt) STD(sin_, sin) STD(cos_, cos)
STD(tanh_, tanh) STD(erf_, erf) STD(abs_, abs) STD(floor_, floor)

template <class P, int kStage, class A>
void reduce(const A (*x)[P::kInputs], int n, A (&r)[P::kReductions + 1]) {
  if constexpr (kStage < P::kStages) {
    for (int k = 0; k < P::kReductions; ++k) {
      const Reduction reduction = P::kReduction[k];
      if (reduction.stage != kStage) continue;
      A sum = 0;
      for (int i = 0; i < n; ++i) {
        A t[P::kReductions + 1];
        P::template terms<kStage>(x[i], r, t);
        const bool first = i == 0;
        if (reduction.kind == kMax) sum = first ? t[k] : max_(sum, t[k]);
        else if (reduction.kind == kMin) sum = first ? t[k] : min_(sum, t[k]);
        else sum += t[k];
      }
      r[k] = reduction.kind == kMean ? sum / n : sum;
    }
    reduce<P, kStage + 1>(x, n, r);
  }
}

template <class P, class A>
void run(const A (*x)[P::kInputs], int n) {
  A r[P::kReductions + 1];
  reduce<P, 0>(x, n, r);
  for (int i = 0; i < n; ++i) {
    A y[P::kOutputs];
    P::outputs(x[i], r, y);
    for (int k = 0; k < P::kOutputs; ++k) std::printf("%.17g ", y[k]);
  }
  std::printf("\\n");
}
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_source_compiles(tmp_path, random):
    """The C++ code of an operator and of its derivative computes what the instructions do."""
    definitions = []
    for text in EXPRESSIONS:
        forward = defined(text)[1]
        definitions += [forward, forward.backward()]
    definitions.append(Expression("where(x < -inf, x, nan * 1e-320) + x * -0.1").definition())
    code, calls, expected = [HARNESS], [], []
    for i, definition in enumerate(definitions):
        x = random.normal(size=(len(definition.inputs), 5))
        for place, node in enumerate(definition.graph.inputs):
            if node.uniform or definition.inputs[place].kind == NUMBER:
                x[place] = x[place, 0]
        values = ", ".join("{" + ", ".join(map(float.hex, column)) + "}" for column in x.T.tolist())
        code.append(f"namespace n{i} {{\n{definition.source}\nconst double x[5][{len(x)}] = {{{values}}};\n}}")
        calls.append(f"run<n{i}::Program>(n{i}::x, 5);")
        results = evaluate(definition, [x[place] for place in range(len(definition.inputs))])
        expected.append(np.stack([np.broadcast_to(y, 5) for y in results], axis=-1).ravel())
    code.append(f"int main() {{ {' '.join(calls)} }}")
    (tmp_path / "programs.cpp").write_text("\n".join(code))
    command = ["g++", "-std=c++17", "-O0", "-Werror=narrowing", "programs.cpp", "-o", "programs"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[:3000]
    ran = subprocess.run([tmp_path / "programs"], capture_output=True, text=True, check=True)
    for line, values in zip(ran.stdout.splitlines(), expected, strict=True):
        np.testing.assert_allclose(np.array(line.split(), float), values, rtol=1e-9, atol=1e-12)
