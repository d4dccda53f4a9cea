"""PyTorch: the nodes of the backward graph, in C++ or in Python: their saved tensors, memory, errors and threads.
FUSEDOPS_TORCH_AUTOGRAD=python runs this and every other suite with the Python nodes."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import weakref
from pathlib import Path

import pytest

import fusedops
from fusedops import loading
from fusedops.derivatives import derivative_of
from tests.helpers.running import python
from tests.helpers.torch_functions import assert_same, autograd_in_cpp, call_and_leaves, every_operator, with_upstream

PACKAGE = Path(fusedops.__file__).parent


@pytest.fixture
def case(torch_backend, spec, random):
    """torch, a call as a function, its inputs, and their names."""
    function, inputs, names = call_and_leaves(torch_backend, spec, random)
    return torch_backend.torch, function, inputs, names


@pytest.fixture
def in_cpp(torch_backend):
    if not autograd_in_cpp():
        pytest.skip("autograd is in Python")


def only(inputs, place):
    """Copies, of which only this one requires a gradient."""
    return tuple(x.detach().clone().requires_grad_(i == place) for i, x in enumerate(inputs))


def test_autograd_is_in_cpp_if_its_library_is_built(torch_backend):
    """Otherwise a suite might silently run with the Python nodes."""
    torch = torch_backend.torch
    file = loading.autograd_file(torch.__version__)
    built = file in loading.FRAMEWORKS["torch"].build()["bytes"]
    is_cpp_requested = os.environ.get("FUSEDOPS_TORCH_AUTOGRAD") != "python"
    assert autograd_in_cpp() == (built and is_cpp_requested)


def test_no_python_runs_in_a_backward(in_cpp, case):
    torch, function, inputs, _ = case
    torch.autograd.backward(*with_upstream(torch, function(*inputs)))  # the first call in a process imports modules
    outputs, upstream = with_upstream(torch, function(*inputs))
    seen = []

    def note(frame, event, argument):
        if event == "call" and PACKAGE in Path(frame.f_code.co_filename).parents:
            seen.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        torch.autograd.backward(outputs, upstream)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert not seen


def test_only_what_is_read_for_the_wanted_gradients_is_kept(case, torch_backend, spec):
    from fusedops.torch.library import TABLE

    torch, function, inputs, names = case
    declared = TABLE[spec.operator]
    read = derivative_of(TABLE, declared)
    absent = {x.name for x in declared.inputs}.difference(names)
    for place in [i for i, x in enumerate(inputs) if x.requires_grad]:
        fresh, kept = only(inputs, place), []
        with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda x: None):
            function(*fresh)
        expected = read.reads([names[place]]) - absent
        assert len(kept) == len(expected), names[place]
        others = {x.data_ptr() for x, name in zip(fresh, names, strict=True) if name not in expected}
        assert not others & {x.data_ptr() for x in kept}


def test_a_number_saves_no_tensor(torch_backend):
    torch, fo = torch_backend.torch, torch_backend.functions
    x = torch.ones(2, 3, device=torch_backend.device, requires_grad=True)
    moved = x * 1
    y = fo.scale(moved, 2.0)
    moved.add_(1)
    y.sum().backward()
    assert x.grad.unique().tolist() == [2]


def test_a_second_backward(case):
    """After freeing, it is torch's own error; with retain_graph it gives the same result."""
    torch, function, inputs, _ = case
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        outputs, upstream = with_upstream(torch, function(*inputs))
    wanted = [x for x in inputs if x.requires_grad]
    outputs, upstream = with_upstream(torch, function(*inputs))
    first = torch.autograd.grad(outputs, wanted, upstream, retain_graph=True)
    assert_same(torch, torch.autograd.grad(outputs, wanted, upstream), first)
    if kept:
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            torch.autograd.grad(outputs, wanted, upstream)


def test_nothing_outlives_its_graph(case):
    """An output that the backward reads does not keep itself alive."""
    torch, function, inputs, _ = case
    outputs, _ = with_upstream(torch, function(*inputs))
    left = [weakref.ref(y) for y in outputs]
    del outputs
    assert [reference() for reference in left] == [None] * len(left)


def test_a_deep_graph_is_freed(torch_backend):
    """Freed by a loop: recursion would overflow the stack with as many nodes."""
    torch, fo = torch_backend.torch, torch_backend.functions
    y = x = torch.ones(1, device=torch_backend.device, requires_grad=True)
    for _ in range(20_000):
        y = fo.scale(y, 1.0)
    del x, y


def test_threads_share_a_graph(torch_backend, random):
    torch = torch_backend.torch
    function, inputs = every_operator(torch_backend, random)
    outputs, upstream = with_upstream(torch, function(*inputs))
    wanted = [x for x in inputs if x.requires_grad]
    expected = torch.autograd.grad(outputs, wanted, upstream, retain_graph=True)
    results = []

    def run():
        results.append(torch.autograd.grad(outputs, wanted, upstream, retain_graph=True))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(threads)
    for got in results:
        assert_same(torch, got, expected)


WAY = """
import torch, fusedops, fusedops.torch as fo
from fusedops.torch import autograd_library
x = torch.ones(2, 3, requires_grad=True)
fo.scale(x, 2.0).sum().backward()
assert x.grad.unique().tolist() == [2]
fusedops.show_config()
"""


@pytest.fixture
def copy(tmp_path):
    """A copy of the package in its own folder, with links to its libraries."""
    if loading.fault(loading.FRAMEWORKS["torch"]):
        pytest.skip("fusedops.torch is not built")
    shutil.copytree(PACKAGE, tmp_path / "fusedops", ignore=shutil.ignore_patterns("*.so", "__pycache__", "_sources"))
    for library in loading.FRAMEWORKS["torch"].folder.glob("*.so"):
        (tmp_path / "fusedops/torch" / library.name).symlink_to(library)
    return tmp_path


def way(folder, **variables):
    """The entry of autograd in show_config, after checking that it works."""
    done = python(WAY, folder=folder, **{"FUSEDOPS_TORCH_AUTOGRAD": "", **variables})
    assert done.returncode == 0, done.stderr
    (line,) = (line.strip() for line in done.stdout.splitlines() if line.startswith("  autograd "))
    return line


def test_python_nodes_are_used_on_request(copy):
    assert way(copy, FUSEDOPS_TORCH_AUTOGRAD="python").endswith("in Python: FUSEDOPS_TORCH_AUTOGRAD=python asks for it")


def test_python_nodes_are_used_if_the_library_does_not_load(in_cpp, torch_backend, copy):
    folder, file = copy / "fusedops/torch", loading.autograd_file(torch_backend.torch.__version__)
    assert way(copy).endswith("in C++")
    (folder / file).rename(folder / "_autograd.torch2.9.so")  # only another version's library
    assert f"in Python: fusedops.torch's {file} is not built: there is no " in way(copy)
    size = (folder / "_autograd.torch2.9.so").stat().st_size
    (folder / file).write_bytes(bytes(size))
    assert f"in Python: {file} does not load: " in way(copy)
