"""Libraries of fused kernels for PyTorch that fusedops is compared with, if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from benchmarks.operators import OPERATORS
from benchmarks.operators.record import Function

# (name, package, minimum compute capability of its kernels, module passed to the operators' records)
LIBRARIES = (("Liger", "liger_kernel", 8, "liger_kernel.ops"), ("QuACK", "quack", 9, "quack"))
FUNCTIONS: dict[str, dict[str, Function]] = {}  # library -> operator -> a function of its inputs in the public order


def load() -> list[str]:
    """Fills FUNCTIONS, which takes seconds. Returns sentences on missing libraries."""
    missing = []
    major, minor = torch.cuda.get_device_capability()
    for name, package, least, module in LIBRARIES:
        if importlib.util.find_spec(package) is None:
            missing.append(f"{name} is not compared: it is not installed (pip install 'fusedops[bench]')")
        elif major < least:
            missing.append(
                f"{name} is not compared: it needs compute capability {least}.0, this GPU has {major}.{minor}"
            )
        else:
            try:
                FUNCTIONS[name] = _functions(name, module)
            except Exception as error:  # an installed library may not work with this torch
                missing.append(f"{name} is not compared: {type(error).__name__}: {error}".splitlines()[0])
    return missing


def _functions(name: str, module: str) -> dict[str, Function]:
    library = import_module(module)
    builders = {operator.name: getattr(operator, name.lower()) for operator in OPERATORS.values()}
    return {operator: build(library) for operator, build in builders.items() if build}


def arguments(library: str, operator: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as the library needs them."""
    if library == "Liger":  # overwrites its inputs with gradients and rotated features
        return {name: value.clone() for name, value in values.items()}
    record = OPERATORS[operator]
    converted = dict(values)
    if record.quack_parameters:
        dtype = getattr(torch, record.quack_parameters)
        converted |= {x.name: values[x.name].to(dtype) for x in record.inputs if x.parameter}
    return converted
