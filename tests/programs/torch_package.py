"""Run by torch/test_packages.py: a packaged program in its own process, which has the operators from `source`: from
fusedops.torch, from a library's file without any of fusedops's Python, or from nothing."""

import sys

import torch
import torch._inductor.codecache  # torch 2.10 uses it without an import

package, values, source = sys.argv[1:]
if source == "fusedops.torch":
    import fusedops.torch  # noqa: F401
elif source != "nothing":
    torch.ops.load_library(source)
inputs, expected = torch.load(values)
outputs = torch._inductor.aoti_load_package(package)(*inputs)  # raises for an unknown operator
assert source == "fusedops.torch" or not any(name.startswith("fusedops") for name in sys.modules)
for got, output in zip(outputs, expected, strict=True):
    assert got.device == output.device and torch.equal(got, output)
print(len(outputs))
