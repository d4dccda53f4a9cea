"""PyTorch: every transform of torch.func over the registered operators: direct calls, exported programs, compiled code.

The reference is plain eager code, which torch/test_transforms.py compares with torch's own autograd.
"""

from __future__ import annotations

import pytest

from tests.helpers.checks import tuples
from tests.helpers.converting import converted
from tests.helpers.running import need_inductor
from tests.helpers.torch_functions import close, function_and_leaves, prepared, recorded_calls, total
from tests.helpers.torch_layers import CASES, ours, set_random_parameters
from tests.specifications import BUILT_IN, EXPRESSIONS

ONE_OF_EACH_LAYER = list({case.layer: case for case in CASES}.values())


@pytest.fixture(autouse=True)
def _forget_compiled_code(torch_backend):
    yield
    torch_backend.torch.compiler.reset()


def check(function, other, tensors, names=None):
    """Asserts that every transform of `other`, another form of the same function, gives the same results."""
    from tests.helpers.torch_transforms import assert_close, transforms

    for name, transform in transforms(function, tensors).items():
        if names is None or name in names:
            assert_close(transforms(other, tensors)[name](*tensors), transform(*tensors))


def check_compiled(torch, function, tensors, compiler, names=None):
    """Asserts that the transforms compile as one graph."""
    from tests.helpers.torch_transforms import all_transforms, assert_close

    every = all_transforms(function, tensors, names)
    assert_close(torch.compile(every, backend=compiler, fullgraph=True)(*tensors), every(*tensors))


def registered_call(torch, spec, sample, inputs, names):
    """The registered operator as a function of the named inputs."""
    from fusedops.torch.library import TABLE

    declaration = TABLE[spec.operator]
    public = [i for i, output in enumerate(declaration.outputs) if not output.saved][: len(spec.outputs)]

    def function(*tensors):
        given = {**inputs, **spec.fixed_options, **sample.options, **dict(zip(names, tensors, strict=True))}
        for declared in declaration.inputs:
            if declared.kind == "scalar" and not isinstance(given[declared.name], torch.Tensor):
                given[f"{declared.name}_value"] = given.pop(declared.name)
                given[declared.name] = None
        outputs = tuples(getattr(torch.ops.fusedops, spec.operator)(**given))
        return tuple(outputs[i] for i in public) if len(public) > 1 else outputs[0]

    return function


def test_bare_operators(torch_backend, spec, random):
    torch = torch_backend.torch
    sample = spec.sample((2, 3), random)
    names, inputs = spec.differentiable(sample), torch_backend.tensors(sample, "float64")
    function, _ = function_and_leaves(torch_backend, spec, sample)
    tensors = tuple(inputs[name] for name in names)
    check(function, registered_call(torch, spec, sample, inputs, names), tensors)


def test_exported_programs(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    program = torch.export.export(Module(), tensors)
    check(function, program.module(), tensors)
    check(function, program.run_decompositions().module(), tensors, ("jvp", "grad", "hessian"))


def test_backward_operators(torch_cpu, spec, random):
    """The registered operators that derivatives consist of: forward mode is the transpose of reverse mode."""
    torch = torch_cpu.torch
    for func, args, kwargs in recorded_calls(torch_cpu, spec, random).values():
        wanted = [
            i
            for i, (x, declared) in enumerate(zip(args, func._schema.arguments, strict=False))
            if isinstance(x, torch.Tensor) and x.is_floating_point() and declared.name not in spec.not_differentiable
        ]
        tensors = tuple(args[i].detach() for i in wanted)

        def function(*tensors, func=func, args=args, kwargs=kwargs, wanted=wanted):
            given = list(args)
            for i, x in zip(wanted, tensors, strict=True):
                given[i] = x
            outputs = func(*given, **kwargs)
            return tuple(y for y in tuples(outputs) if y.numel())  # an unneeded gradient has no elements

        if sum(x.numel() for x in tensors) > 100 or not function(*tensors):
            continue
        places = tuple(range(len(tensors)))
        expected = torch.autograd.functional.jacobian(function, tensors)
        for transform in (torch.func.jacfwd, torch.func.jacrev):
            close(torch, transform(function, places)(*tensors), expected)


def test_compiled(torch_backend, spec, random):
    function, tensors = prepared(torch_backend, spec, random)
    check_compiled(torch_backend.torch, function, tensors, "aot_eager", ("jvp", "grad"))


JACOBIANS = ("jacfwd", "jacrev", "hessian")


@pytest.fixture(scope="module")
def uncompiled():
    """The transforms that this version of torch cannot compile for any function of several tensors: before 2.13 those
    that create a standard basis."""
    import torch

    jacobians = torch.func.jacfwd(torch.mul, (0, 1))
    try:
        torch.compile(jacobians, backend="eager", fullgraph=True)(torch.ones(2), torch.ones(2))
    except torch._dynamo.exc.TorchDynamoException:
        return JACOBIANS
    return ()


# One of each kind: scalars, several results, integers, a product.
OF_INDUCTOR = [spec for spec in BUILT_IN if spec.name in ("axpby", "add_rms_norm", "cross_entropy", "linear")]
# Operators whose second derivatives equal those of others: axpby's, none (add and dropout_add), add_layer_norm's,
# add_layer_norm's with the formula of rms_norm, and gated_linear's. Those of attention are a formula of torch's own
# operators, which compiles slowest.
ALIKE = ("scale", "add", "dropout_add", "layer_norm", "add_rms_norm", "linear", "attention", "attention_varlen")
WHOLE = [*(spec for spec in BUILT_IN if spec.name not in ALIKE), EXPRESSIONS["norm"]]


def check_whole(torch_backend, spec, compiler, uncompiled, random, is_wanted):
    from tests.helpers.torch_transforms import transforms

    function, tensors = prepared(torch_backend, spec, random)
    wanted = filter(is_wanted, transforms(function, tensors))
    names = [name for name in wanted if len(tensors) == 1 or name not in uncompiled]
    check_compiled(torch_backend.torch, function, tensors, compiler, names)


@pytest.mark.slow
@pytest.mark.parametrize("spec", WHOLE, ids=str)
def test_compiled_whole(torch_backend, spec, uncompiled, random):
    """The operators and transforms that test_compiled leaves out."""
    check_whole(torch_backend, spec, "aot_eager", uncompiled, random, lambda name: name not in ("jvp", "grad"))


@pytest.mark.slow  # inductor compiles hundreds of small kernels
@pytest.mark.parametrize("spec", OF_INDUCTOR, ids=str)
def test_compiled_by_inductor(torch_backend, spec, uncompiled, random):
    """Inductor compiles aot_eager's graphs, so a few operators suffice."""
    need_inductor()
    names = ("jvp", "grad", "hessian", "vmap of jvp")
    check_whole(torch_backend, spec, "inductor", uncompiled, random, lambda name: name in names)


def layer_function(torch, case, backend, random):
    """A layer in float64 as a function of its floating inputs and parameters, and these tensors."""
    layer = ours(case).to(backend.device, torch.float64)
    set_random_parameters([layer], random)
    inputs = case.tensors(backend, "float64", random)
    places = [i for i, x in enumerate(inputs) if x.is_floating_point()]
    names = list(dict(layer.named_parameters()))

    def function(*tensors):
        given = list(inputs)
        for i, x in zip(places, tensors, strict=False):
            given[i] = x
        parameters = dict(zip(names, tensors[len(places) :], strict=True))
        return torch.func.functional_call(layer, parameters, tuple(given))

    return function, (*(inputs[i] for i in places), *(x.detach() for x in layer.parameters()))


@pytest.mark.parametrize("case", ONE_OF_EACH_LAYER, ids=str)
def test_compiled_layers(torch_backend, case, random):
    """Forward and reverse mode, against torch's own autograd of eager code."""
    torch = torch_backend.torch
    function, tensors = layer_function(torch, case, torch_backend, random)
    tangents = tuple(torch.ones_like(x) for x in tensors)

    def transformed(*tensors):
        gradients = torch.func.grad(total(function), tuple(range(len(tensors))))(*tensors)
        return torch.func.jvp(function, tensors, tangents), gradients

    got = torch.compile(transformed, backend="aot_eager", fullgraph=True)(*tensors)
    leaves = tuple(x.clone().requires_grad_() for x in tensors)
    gradients = torch.autograd.grad(total(function)(*leaves), leaves)
    close(torch, got, (torch.autograd.functional.jvp(function, tensors, tangents), gradients))


def test_converted_models(torch_backend, random):
    torch, fo = torch_backend.torch, torch_backend.functions
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 6), torch.nn.RMSNorm(6), torch.nn.Softmax(-1))
    model = converted(fo, model.to(torch_backend.device, torch.float64))
    x = torch_backend.tensor(random.normal(size=(3, 8)), "float64")
    check_compiled(torch, model, (x,), "aot_eager", ("jvp", "grad"))
    check(model, torch.export.export(model, (x,)).module(), (x,))
