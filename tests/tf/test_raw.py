"""TensorFlow: the compiled library alone, in a process that never imports fusedops."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import run_without_package
from tests.specifications import BUILT_IN, is_of_an_expression


@dataclass(frozen=True)
class Call:
    """One node of a graph: its inputs and outputs."""

    function: str
    inputs: dict[str, Any]  # names of arrays; a list of at most one for an optional input
    attributes: dict[str, Any]  # those that no input determines
    arrays: dict[str, np.ndarray]
    results: list[np.ndarray]


def raw_calls(backend, spec) -> Iterator[Call]:
    """The operators of a public function and its gradient."""
    random = np.random.default_rng(3)
    samples = [spec.sample((5, 33), random), *(spec.more_samples(random) if "dropout=" in spec.signature else ())]
    return itertools.chain.from_iterable(raw_calls_of(backend, spec, sample) for sample in samples)


def raw_calls_of(backend, spec, sample) -> Iterator[Call]:
    tf = backend.tf
    inputs = backend.numpy(backend.tensors(sample, "float32"), np.float32)
    with tf.Graph().as_default() as graph:
        # Placeholders, since TensorFlow would fold constants on a CPU.
        fed = {name: tf.compat.v1.placeholder(inputs[name].dtype, inputs[name].shape) for name in sample.tensors}
        values = {tensor: inputs[name] for name, tensor in fed.items()}
        outputs = backend.call(spec.name, inputs | fed, sample.options)
        with backend.place:
            wanted = [fed[name] for name in spec.differentiable(sample)]
            tf.gradients(outputs, wanted, [tf.sin(y) for y in outputs])
        with tf.compat.v1.Session() as session:
            for node in graph.get_operations():
                if node.type.startswith("Fusedops"):
                    yield of_node(node, *session.run([list(node.inputs), list(node.outputs)], values))


def of_node(node, inputs, results) -> Call:
    definition, position, names = node.op_def, 0, {}
    for argument in definition.input_arg:
        count = node.get_attr(argument.number_attr) if argument.number_attr else 1
        of_argument = [f"{argument.name}{i}" for i in range(position, position + count)]
        names[argument.name] = of_argument if argument.number_attr else of_argument[0]
        position += count
    decided = {name for argument in definition.input_arg for name in (argument.type_attr, argument.number_attr)}
    values = {attribute.name: node.get_attr(attribute.name) for attribute in definition.attr}
    attributes = {
        name: value.decode() if isinstance(value, bytes) else getattr(value, "name", value)
        for name, value in values.items()
        if name not in decided
    }
    flat = [name for given in names.values() for name in (given if isinstance(given, list) else [given])]
    function = re.sub(r"(?<!^)(?=[A-Z])", "_", definition.name).lower()
    return Call(function, names, attributes, dict(zip(flat, inputs, strict=True)), results)


@pytest.mark.slow
def test_without_the_package(tf_backend, tmp_path):
    """Every operator, including backward ones: same bits, same messages."""
    from fusedops.tf.library import TABLE

    calls = {call.function.removeprefix("fusedops_"): call for spec in BUILT_IN for call in raw_calls(tf_backend, spec)}
    named = {name for name in TABLE if not is_of_an_expression(name)}
    assert calls.keys() == {name for name in named if TABLE[name].differentiable}
    for name, call in calls.items():
        np.savez(tmp_path / name, **call.arrays)
        text = {"function": call.function, "inputs": call.inputs, "attributes": call.attributes}
        (tmp_path / f"{name}.json").write_text(json.dumps(text))
    library = shutil.copy(tf_backend.functions.library_path(), tmp_path)  # the library needs no other file
    done = run_without_package(tf_backend, "tf_raw.py", library, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, call in calls.items():
        found = np.load(tmp_path / f"{name}.results.npz")
        for i, expected in enumerate(call.results):
            assert_same_bits(found[f"arr_{i}"], np.asarray(expected), name)
        sentence = rf"fusedops\.{name}: \w+ must be float64, float32, float16 or bfloat16; got int32"
        assert re.search(f"{name}: .*{sentence}", done.stdout)


def test_names(tf_cpu):
    tf = tf_cpu.tf
    library = tf.load_op_library(tf_cpu.functions.library_path())
    for spec in BUILT_IN:
        assert callable(getattr(library, f"fusedops_{spec.operator}"))
        camel = "".join(part.capitalize() for part in spec.operator.split("_"))
        assert callable(getattr(tf.raw_ops, f"Fusedops{camel}", None) or getattr(library, f"Fusedops{camel}"))


def test_an_invalid_choice_is_refused_by_the_core(tf_backend):
    """Python's functions check choices before the core."""
    tf = tf_backend.tf
    library = tf.load_op_library(tf_backend.functions.library_path())
    sentence = r"fusedops\.bias_act: activation must be one of identity, relu, .+; got 'swish'"
    with tf_backend.place, pytest.raises(tf.errors.InvalidArgumentError, match=sentence):
        library.fusedops_bias_act(tf.ones((2, 3)), [], activation="swish")


def test_the_build_prints_the_path(tf_cpu):
    """`make build-tf` prints it at its end."""
    from fusedops.building.ahead import outcome
    from fusedops.loading import FRAMEWORKS

    path = tf_cpu.functions.library_path()
    printed = outcome(FRAMEWORKS["tf"], "2.21.0", Path(path).parents[2])
    assert printed == f"fusedops.tf: built for TensorFlow 2.21.0: {Path(path).resolve()}"
