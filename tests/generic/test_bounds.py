"""Every number with declared bounds is checked against them, for all operators, in all frameworks."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.specifications import BUILT_IN, is_of_an_expression

# Numbers without bounds: factors of an elementwise formula, a label, and a dimension.
UNBOUNDED = {
    ("polynomial_activation", "coefficients"),
    ("cross_entropy", "ignore_index"),
    ("kl_div", "ignore_index"),
    ("log_prob", "ignore_index"),
    ("rope", "seq_dim"),  # counted from either end: its range follows from x
}


LARGEST, TINY = sys.float_info.max, sys.float_info.min


def table(backend: Any) -> dict[str, Any]:
    library = importlib.import_module(f"fusedops.{backend.framework}.library")
    return {name: operator for name, operator in library.TABLE.items() if not is_of_an_expression(name)}


def bounded(backend: Any) -> Iterator[tuple[Any, Any]]:
    for operator in table(backend).values():
        yield from ((operator, attribute) for attribute in operator.attributes if attribute.bounds)


def outside(attribute: Any) -> list[Any]:
    """Values just below and just above the bounds, and NaN."""
    least, most = attribute.bounds.least, attribute.bounds.most
    if attribute.type == "int":
        return [int(x) for x in (least - 1, most + 1) if math.isfinite(x)]
    found = [math.nan, -math.inf]
    if least > -LARGEST:  # not a subnormal number, which TensorFlow's threads flush to 0
        found.append({0: -TINY, TINY: 0.0}.get(least, math.nextafter(least, -math.inf)))
    if most < LARGEST:
        found.append(most if attribute.bounds.is_open else math.nextafter(most, math.inf))
    return found + [math.inf] * math.isfinite(most)


def inside(attribute: Any) -> list[Any]:
    least, most = attribute.bounds.least, attribute.bounds.most
    if attribute.type == "int":
        return [int(x) for x in (least, most) if math.isfinite(x)]
    return [least, math.nextafter(most, -math.inf) if attribute.bounds.is_open else most]


def refusal(backend: Any, operator: Any, attribute: Any, value: Any) -> str | None:
    """The error of a call with this number and tensors of ones, if it is about the number, which is checked first."""
    ones = backend.from_numpy(np.ones((2, 2, 2), np.float32))
    number = backend.from_numpy(np.ones((), np.float32))
    variable = backend.tf.Variable(ones) if backend.framework == "tf" else ones
    given = {"tensor": ones, "optional": None, "scalar": number, "list": [ones]}

    def argument(x: Any) -> Any:
        if x.updated:
            return [variable] if x.kind == "list" else variable
        return given[x.kind]

    options = {attribute.name: [value] if attribute.type == "floats" else value}
    try:
        getattr(backend.functions.ops, operator.name)(*map(argument, operator.inputs), **options)
    except backend.errors as error:
        found = re.search(rf"fusedops\.{operator.function}: {attribute.name} must be .+; got \S+", str(error))
        return found[0] if found else None
    return None


def expected(attribute: Any) -> str:
    least, most, is_open = attribute.bounds.least, attribute.bounds.most, attribute.bounds.is_open
    if (least, most) == (-LARGEST, LARGEST):
        return "a finite number"
    if least == TINY:
        return "a finite number above 0"
    if most == LARGEST:
        return f"a finite number, at least {least:g}"
    if most == math.inf:
        return f"at least {least:g}"
    if attribute.type == "int":
        return f"{least:g} or {most:g}"
    return f"in [{least:g}, {most:g}{')' if is_open else ']'}"


def test_every_bound_is_checked(any_backend):
    """One sentence for each operator, including gradients and optimizers; no error at a bound."""
    count = 0
    for operator, attribute in bounded(any_backend):
        for value in outside(attribute):
            sentence = refusal(any_backend, operator, attribute, value)
            assert sentence, (operator.name, attribute.name, value)
            got = sentence.split("; got ")[1].rstrip("\"')")
            start = f"fusedops.{operator.function}: {attribute.name} must be {expected(attribute)}; got "
            assert sentence.startswith(start)
            assert np.array_equal(float(got), float(value), equal_nan=True), sentence
            count += 1
        for value in inside(attribute):
            assert not refusal(any_backend, operator, attribute, value), (operator.name, attribute.name, value)
    assert count > 100


def test_every_number_has_bounds_or_needs_none(any_backend):
    without = {
        (operator.name.removeprefix("linear_").removesuffix("_backward"), attribute.name)
        for operator in table(any_backend).values()
        for attribute in operator.attributes
        if attribute.type in ("float", "int", "floats") and not attribute.bounds
    }
    assert without == UNBOUNDED


NUMBERS = (
    *("eps", "weight_offset", "scale", "softcap", "window", "seq_dim", "dropout", "rate", "label_smoothing"),
    *("temperature", "z_loss", "beta", "limit", "alpha", "shift"),
)
CASES = [
    pytest.param(spec, name, id=f"{spec.name}-{name}")
    for spec in BUILT_IN
    for name in re.findall(r"\w+", spec.signature)
    if name in NUMBERS and (spec.name, name) not in UNBOUNDED
]


def attribute_of(backend: Any, spec: Any, option: str) -> Any:
    """The bounded attribute that an option of a public function becomes."""
    return next(attribute for attribute in table(backend)[spec.operator].attributes if attribute.name == option)


def test_every_bounded_option_is_a_case(any_backend):
    """The part of the classes in a loss is an option of the operator alone."""
    cases = {(case.values[0].name, case.values[1]) for case in CASES}
    options = {
        (spec.name, x.name)
        for spec in BUILT_IN
        for operator, x in bounded(any_backend)
        if operator.name == spec.operator
    }
    assert cases == {(name, option) for name, option in options if option not in ("first_class", "classes")}


@pytest.mark.parametrize(("operator", "option"), CASES)
def test_options_of_functions(any_backend, operator, option, random):
    """Refused out of bounds, eager and traced, and computed at a bound. A window counts from 1, since None means no
    window."""
    sample = operator.sample((2, 4), random)
    attribute = attribute_of(any_backend, operator, option)
    values, good = outside(attribute), inside(attribute)
    if option == "window":
        values, good = [0, -1], [1]
    if option == "seq_dim":
        good = [sample.options.get(option, -3)]  # the layout of the sample
    inputs = any_backend.tensors(sample, "float32")
    given = {name: x for name, x in inputs.items() if name != option}
    tensors = {name: x for name, x in given.items() if any_backend.is_tensor(x)}

    def call(value: Any) -> Any:
        def function(*arrays: Any) -> Any:
            others = {**given, **dict(zip(tensors, arrays, strict=True))}
            options = {**sample.options, **({} if option in inputs else {option: value})}
            if option == "dropout":
                options["seed"] = (5, 0)  # JAX draws none
            named = {name: value if name == option else others[name] for name in inputs}
            return any_backend.call(operator.name, named, options)

        return function

    for value in values:
        for run in (call(value), any_backend.traced(call(value))):
            with pytest.raises(any_backend.errors, match=rf"fusedops\.\w+: {option} must be .+; got "):
                run(*tensors.values())
    for value in good:
        call(value)(*tensors.values())
