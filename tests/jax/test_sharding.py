"""JAX: calls on sharded arrays run on the shards. Four devices of one process."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest

PARTS = 4
# Sums over the shards have another order: a few roundings of 2^-53 of sums of at most 32 terms of a few units.
CLOSE = {"rtol": 1e-13, "atol": 1e-13}


def mesh_of(jax, explicit=False, sizes=(PARTS,)):
    """A mesh of four devices, along "data", or "a" and "b"."""
    devices = jax.devices("cpu")
    if len(devices) < PARTS:
        pytest.skip("four devices are needed")
    names = ("data",) if len(sizes) == 1 else ("a", "b")
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    return jax.make_mesh(sizes, names, (kind,) * len(sizes), devices=devices[:PARTS])


def calls(jax, fo):
    """Each function, with the shape of every argument and the dimension that is sharded; None for a whole array."""
    np_ = jax.numpy

    def gradients(f, *places):
        return jax.grad(lambda *given: np_.sin(f(*given)).sum(), places)

    def attention(q, k):
        return fo.attention(q, k, k, causal=True)

    rows, weight = ((8, 16), 0), ((16,), None)
    heads = (((2, 6, 8, 4), 2), ((2, 6, 4, 4), 2))
    return {
        "rms_norm": (fo.rms_norm, [rows, weight], 0),
        "rms_norm, backward": (gradients(fo.rms_norm, 0, 1), [rows, weight], 1),
        "cross_entropy": (fo.cross_entropy, [rows, ("labels", 0)], 1),
        "cross_entropy, backward": (jax.grad(fo.cross_entropy), [rows, ("labels", 0)], 1),
        "linear, rows": (fo.linear, [rows, ((32, 16), None)], 0),
        "linear, columns": (fo.linear, [((8, 16), None), ((32, 16), 0)], 0),
        "linear, terms": (fo.linear, [((8, 16), 1), ((32, 16), 1)], 1),
        "attention, batch": (attention, [((4, 6, 8, 4), 0), ((4, 6, 4, 4), 0)], 0),
        "attention, heads": (gradients(attention, 0, 1), [*heads], 0),
        "linear_cross_entropy": (
            jax.value_and_grad(fo.linear_cross_entropy, (0, 1)),
            [rows, ((16, 16), None), ("labels", 0)],
            1,  # the loss, the number of labels and dweight, in the forward alone
        ),
    }


NAMES = (
    *("rms_norm", "rms_norm, backward", "cross_entropy", "cross_entropy, backward", "linear, rows", "linear, columns"),
    *("linear, terms", "attention, batch", "attention, heads", "linear_cross_entropy"),
)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_gathered(jax_cpu, name, random):
    """The compiled program has no all-gather, the expected sums over devices, and the results of one device."""
    jax = jax_cpu.jax
    mesh = mesh_of(jax)
    function, arguments, sums = calls(jax, jax_cpu.functions)[name]
    whole, sharded = [], []
    for shape, dim in arguments:
        given = random.integers(0, 16, 8) if shape == "labels" else random.normal(size=shape)
        spec = [None] * given.ndim
        if dim is not None:
            spec[dim] = "data"
        whole.append(jax_cpu.from_numpy(given))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        sharded.append(jax.device_put(given, sharding))
    program = jax.jit(function).lower(*sharded).compile()
    text = program.as_text()
    assert "all-gather" not in text and "all-to-all" not in text
    if sums is not None:
        assert text.count(" all-reduce(") == sums
    got, expected = jax.tree.leaves(program(*sharded)), jax.tree.leaves(function(*whole))
    for y, exact in zip(got, expected, strict=True):
        np.testing.assert_allclose(y, exact, **CLOSE)


def _add_rms_norm(fo, x, seed):
    return fo.add_rms_norm(x, 2 * x, dropout=0.5, seed=seed)[0]


def _attention(fo, x, seed):
    return fo.attention(x, x[:, :, ::2], x[:, :, ::2], dropout=0.5, seed=seed)


def _dropout(fo, x, seed):
    return fo.dropout(x, 0.5, seed)


DROPPING = {
    "one axis": (_dropout, (4, 6, 8), ("a",), True),
    "an inner axis": (_dropout, (4, 6, 8), (None, "b"), True),
    "columns": (_dropout, (4, 6, 8), (None, None, ("b", "a")), True),
    "both axes": (_dropout, (8, 6), (("b", "a"),), True),
    "two dimensions": (_dropout, (1, 4, 6), (None, "a", "b"), True),
    "dimensions that no runs describe": (_dropout, (4, 6, 8), ("a", "b"), False),
    "rows": (_add_rms_norm, (4, 6, 8), ("a",), True),
    "rows of sequences": (_add_rms_norm, (4, 6, 8), (None, "b"), True),
    "sequences": (_attention, (4, 6, 8, 4), (("a", "b"),), True),
    "heads": (_attention, (4, 6, 8, 4), (None, None, "a"), True),
    "heads of one sequence": (_attention, (1, 6, 8, 4), (None, None, ("a", "b")), True),
}


@pytest.mark.parametrize("kind", ["pair", "int64"])
@pytest.mark.parametrize("explicit", [False, True], ids=["automatic", "explicit"])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_of_shards(jax_cpu, name, explicit, kind, random):
    """The elements that one device drops, forward and backward, without a gather: a shard's seed has its place."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    call, shape, spec, is_divided = DROPPING[name]
    if explicit and not is_divided:
        spec = spec[:1]
    mesh = mesh_of(jax, explicit, (2, 2))
    x, seed = random.normal(size=shape), (5, 2**40 + 3)
    seed = seed if kind == "pair" else np.array(seed)

    def both(x):
        return call(fo, x, seed), jax.grad(lambda x: np_.sin(call(fo, x, seed)).sum())(x)

    expected = jax.jit(both)(x)
    with jax.set_mesh(mesh):
        given = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
        program = jax.jit(both).lower(given).compile()
        found = program(given)
    gathers = re.findall(r"all-gather|all-to-all|collective-permute", program.as_text())
    assert not (gathers and is_divided)
    for y, exact in zip(found, expected, strict=True):
        assert y.sharding.spec[: len(spec)] == given.sharding.spec[: len(spec)] or not is_divided
        np.testing.assert_array_equal(np.asarray(y) == 0, np.asarray(exact) == 0)
        np.testing.assert_allclose(y, exact, **CLOSE)
    assert np.any(np.asarray(found[0]) == 0) or call is not _dropout


def test_shards_of_a_user(jax_cpu, random):
    """In shard_map a call is on shards already, and a shared weight's gradient is summed over devices."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    mesh = mesh_of(jax)
    spec = jax.sharding.PartitionSpec("data")
    sharded = jax.shard_map(fo.rms_norm, mesh=mesh, in_specs=(spec, jax.sharding.PartitionSpec()), out_specs=spec)
    given = [random.normal(size=shape) for shape in ((8, 16), (16,))]

    def gradients(f):
        return jax.jit(jax.grad(lambda x, w: jax.numpy.sin(f(x, w)).sum(), (0, 1)))(*given)

    for got, expected in zip(gradients(sharded), gradients(fo.rms_norm), strict=True):
        np.testing.assert_allclose(got, expected, **CLOSE)
    tangents = [jax.jvp(f, tuple(given), tuple(map(np.cos, given)))[1] for f in (sharded, fo.rms_norm)]
    np.testing.assert_allclose(*tangents, **CLOSE)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("explicit", [False, True], ids=["automatic", "explicit"])
def test_fewer_key_heads_than_devices(jax_cpu, explicit, heads, random):
    """Heads of queries and slopes are sharded by four devices, which cannot share one key head, or two."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    mesh = mesh_of(jax, explicit)
    shapes = ((1, 3, 4, 8), (1, 5, heads, 8), (4,))
    given = [random.uniform(0.1, 1, size=shape) for shape in shapes]

    def call(q, k, slopes):
        return jax.value_and_grad(lambda q, k: np_.sin(fo.attention(q, k, k, alibi=slopes)).sum(), (0, 1))(q, k)

    expected = jax.jit(call)(*given)
    specs = ((None, None, "data"), (), ("data",))
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, jax.sharding.PartitionSpec(*s)) for x, s in zip(given, specs, strict=True)]
        found = jax.jit(call)(*placed)
    for got, exact in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, exact, **CLOSE)


def test_tangents_of_shared_heads_on_explicit_axes(jax_cpu, random):
    """Queries and keys are sharded by heads, of which there are fewer of keys."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    mesh, spec = mesh_of(jax, explicit=True), jax.sharding.PartitionSpec(None, None, "data")
    given = [random.normal(size=(1, 3, heads, 8)) for heads in (2 * PARTS, PARTS, PARTS)]
    tangents = jax.jit(lambda *x: jax.jvp(fo.attention, x, x)[1])
    expected = tangents(*given)
    with jax.set_mesh(mesh):
        found = tangents(*(jax.device_put(x, spec) for x in given))
        assert jax.typeof(found).sharding.spec[2] == "data"
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_shards_of_a_user_along_one_axis(jax_cpu, random):
    """shard_map over one of two axes leaves the other one to the compiler, which has no mesh for it there."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    mesh, spec = mesh_of(jax, sizes=(2, 2)), jax.sharding.PartitionSpec("a")
    x = random.normal(size=(8, 16))
    sharded = jax.shard_map(fo.rms_norm, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"a"})
    given = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("a", "b"))))
    found, expected = (
        jax.jit(jax.grad(lambda x, f=f: jax.numpy.sin(f(x)).sum()))(y) for f, y in ((sharded, given), (fo.rms_norm, x))
    )
    np.testing.assert_array_equal(found, expected)


def test_exported_shards(jax_cpu, random):
    """A program within shard_map can be exported. Else JAX refuses it: the compiler calls Python to divide a call."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    mesh, spec = mesh_of(jax), jax.sharding.PartitionSpec("data")
    given = jax.device_put(random.normal(size=(8, 16)), jax.sharding.NamedSharding(mesh, spec))
    allowed = ("fusedops", "CustomSPMDPartitioning")
    checks = [*map(jax.export.DisabledSafetyCheck.custom_call, allowed)]

    def saved(function):
        return jax.export.export(jax.jit(function), platforms=["cpu"], disabled_checks=checks)(given).serialize()

    program = jax.export.deserialize(saved(jax.shard_map(fo.rms_norm, mesh=mesh, in_specs=spec, out_specs=spec)))
    np.testing.assert_array_equal(program.call(given), fo.rms_norm(np.asarray(given)))
    with pytest.raises(NotImplementedError, match="serialization of host_callbacks is not yet implemented"):
        saved(fo.rms_norm)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [2, 5, 8])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_gradients_kept_by_shards(jax_cpu, reduction, ignored, dtype, random):
    """Each shard's forward keeps its gradients, relative to all labels. Ignored ones fill a shard, or all of them."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    given = [jax_cpu.tensor(random.normal(size=(rows, 16)), dtype) for rows in (8, 12)]
    given.append(np.where(np.arange(8) < ignored, -100, random.integers(0, 12, 8)))

    def loss(x, weight, labels):
        return 3 * fo.linear_cross_entropy(x, weight, labels, reduction=reduction)

    step = jax.value_and_grad(loss, (0, 1))
    rows = jax.sharding.NamedSharding(mesh_of(jax), jax.sharding.PartitionSpec("data"))
    sharded = [jax.device_put(given[0], rows), np.asarray(given[1]), jax.device_put(given[2], rows)]
    found, expected = (jax.tree.leaves(f(*x)) for f, x in ((jax.jit(step), sharded), (step, given)))
    for got, exact in zip(found, expected, strict=True):
        assert got.dtype == exact.dtype
        got, exact = np.asarray(got, "float64"), np.asarray(exact, "float64")
        # bfloat16: a part is rounded three times, and so is the whole; sums of four parts are rounded thrice.
        limit = 1e-13 if dtype == "float64" else 9 * 2.0**-9
        np.testing.assert_allclose(got, exact, rtol=0, atol=limit * np.nan_to_num(np.abs(exact)).max())
    kept = r"linear_cross_entropy\[[^\]]*'true', 'true', 'false'"  # keep_dx, keep_dweight, keep_dbias
    assert re.search(kept, str(jax.make_jaxpr(step)(*sharded)))


WEIGHTLESS = {
    "one shard": [0, 0, 3, 5, 1, 7, 2, 11],
    "one shard, beside ignored labels": [0, -100, -100, -100, 1, 7, 2, 11],
    "all": [0] * 8,
    "all, beside ignored labels": [-100, -100, -100, *[0] * 5],
    "ignored": [-100] * 8,
}  # class 0 has no weight


@pytest.mark.parametrize("options", [{}, {"z_loss": 0.1}, {"label_smoothing": 0.1}], ids=str)
@pytest.mark.parametrize("labels", WEIGHTLESS.values(), ids=WEIGHTLESS.keys())
@pytest.mark.parametrize("name", ["cross_entropy", "linear_cross_entropy"])
def test_shards_without_weight(jax_cpu, name, labels, options, random):
    """All labels of a shard are ignored or have a class of weight 0. Smoothing and z_loss give rows of such a class
    a loss and gradients nevertheless. Without any weight the results have the NaN, infinities and zeros of one device.
    """
    jax, fo = jax_cpu.jax, jax_cpu.functions
    given = [random.normal(size=(8, 16)), random.normal(size=(12, 16))][: 1 + name.startswith("linear")]
    class_weight = random.uniform(0.5, 2, 12 if len(given) > 1 else 16).astype("float32")
    class_weight[0] = 0

    def loss(labels, *given):
        return getattr(fo, name)(*given, labels, class_weight=class_weight, **options)

    step = jax.value_and_grad(loss, tuple(range(1, len(given) + 1)))
    rows = jax.sharding.NamedSharding(mesh_of(jax), jax.sharding.PartitionSpec("data"))
    sharded = jax.device_put(np.array(labels), rows), jax.device_put(given[0], rows), *given[1:]
    for function in (step, loss):  # without gradients, the forward keeps none
        found, expected = (
            jax.tree.leaves(f(*x)) for f, x in ((jax.jit(function), sharded), (function, (np.array(labels), *given)))
        )
        for got, exact in zip(found, expected, strict=True):
            limit = 1e-13 * np.abs(np.where(np.isfinite(exact), exact, 0)).max()
            for shard in getattr(got, "addressable_shards", ()):
                np.testing.assert_allclose(shard.data, exact[shard.index], rtol=0, atol=limit)


EXPLICIT = {
    "dropout": lambda fo, x: fo.dropout(x, 0.5, (1, 2)),
    "attention": lambda fo, x: fo.attention(*[x[:, None, None]] * 3, dropout=0.5, seed=(1, 2)),
    "add_rms_norm": lambda fo, x: fo.add_rms_norm(x, x, dropout=0.5, seed=(1, 2))[0],
    "rms_norm": lambda fo, x: fo.rms_norm(x),
    "cross_entropy": lambda fo, x: fo.cross_entropy(x, np.arange(8)),
    "scale": lambda fo, x: fo.scale(x, x.sum()),
}


@pytest.mark.parametrize("spec", [("data",), (None, "data"), ()], ids=str)
@pytest.mark.parametrize("name", EXPLICIT)
def test_derivatives_on_explicit_axes(jax_cpu, name, spec, random):
    """A gradient has the sharding of its input's type, also where the call gathers the input."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    spec = jax.sharding.PartitionSpec(*spec)
    mesh = mesh_of(jax, explicit=True)
    x = random.normal(size=(8, 16))

    def call(x):
        return EXPLICIT[name](fo, x)

    def total(x):
        return np_.sin(call(x)).sum()

    def tangent(x):
        return jax.jvp(call, (x,), (x,))[1]

    gradients = {
        "grad": jax.grad(total),
        "forward over reverse": lambda x: jax.jvp(jax.grad(total), (x,), (x,))[1],
        "reverse over reverse": jax.grad(lambda x: np_.sin(jax.grad(total)(x)).sum()),
        "reverse over forward": jax.grad(lambda x: np_.sin(tangent(x)).sum()),
    }
    expected = {key: f(x) for key, f in {**gradients, "tangent": tangent}.items()}
    with jax.set_mesh(mesh):
        given = jax.device_put(x, spec) if spec else np_.asarray(x)  # the latter is on one device
        found = {key: jax.jit(f)(given) for key, f in {**gradients, "tangent": tangent}.items()}
        assert {str(jax.typeof(found[key])) for key in gradients} == {str(jax.typeof(given))}
    for key, exact in expected.items():
        limit = 1e-12 * max(1, np.abs(exact).max())  # scale: the largest values are sums of 128
        np.testing.assert_allclose(found[key], exact, rtol=0, atol=limit, err_msg=key)


@pytest.mark.parametrize("is_set", [True, False], ids=["set_mesh", "mesh of the arguments"])
@pytest.mark.parametrize("spec", [("a", "b"), (None, "a")], ids=str)
def test_two_explicit_axes(jax_cpu, spec, is_set, random):
    """A formula merges sharded dimensions, for which JAX does not choose a sharding. A loop maps along one of them."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    mesh = mesh_of(jax, explicit=True, sizes=(2, 2))
    x, gate_up, down = (random.normal(size=shape) for shape in ((4, 2, 6), (3, 6, 6), (3, 5, 3)))
    index, weight = np.arange(16).reshape(4, 2, 2) % 4, random.normal(size=(4, 2, 2))

    def experts(x):
        return np_.sin(fo.experts(x, index, weight, gate_up, down)).sum()

    def norm(x):
        return np_.sin(fo.rms_norm(x)).sum()

    def call(x):
        twice = jax.grad(lambda x: np_.sin(jax.grad(experts)(x)).sum())
        return {
            "reverse over reverse": twice(x),
            "forward over reverse": jax.jvp(jax.grad(experts), (x,), (x,))[1],
            "map of gradients": jax.vmap(jax.grad(norm))(x),
            "map of calls": jax.vmap(lambda x: fo.rms_norm(x, x.sum(0)))(x),
        }

    expected = jax.jit(call)(x)
    given = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        found = jax.jit(call)(given)
    for name, exact in expected.items():
        assert str(jax.typeof(found[name])) == str(jax.typeof(given))
        np.testing.assert_allclose(found[name], exact, rtol=0, atol=1e-12 * np.abs(exact).max(), err_msg=name)


@pytest.mark.parametrize("is_compiled", [True, False], ids=["jit", "eager"])
def test_gradients_in_tensors_on_no_mesh(jax_cpu, is_compiled, random):
    """A weight of NumPy and a number, beside an array on explicit axes, in either order."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    mesh = mesh_of(jax, explicit=True, sizes=(2, 2))
    x, weight = random.normal(size=(4, 6)), random.normal(size=6)

    def norm(x, weight, factor):
        return np_.sin(fo.scale(fo.rms_norm(x, weight), factor)).sum()

    def twice(*given):
        return sum(np_.sin(y).sum() for y in jax.grad(norm, (0, 1, 2))(*given))

    places = {"x": ("a", None), "weight": ("a",)}
    for order in (1, 2):
        gradients = jax.grad(norm if order == 1 else twice, (0, 1, 2))
        expected = gradients(x, weight, 0.5)
        for name, spec in places.items():
            values = {"x": x, "weight": weight}
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
            values[name] = jax.device_put(values[name], sharding)
            with jax.set_mesh(mesh):
                found = (jax.jit(gradients) if is_compiled else gradients)(*values.values(), 0.5)
            for value, exact in zip(found, expected, strict=True):
                np.testing.assert_allclose(value, exact, rtol=0, atol=1e-12 * np.abs(exact).max(), err_msg=name)
            assert jax.typeof(found[[*places].index(name)]).sharding.spec == jax.sharding.PartitionSpec(*spec)


def test_explicit_axes(jax_cpu, random):
    """On a mesh of explicit axes the types of results have the shardings of the calls."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    mesh, spec = mesh_of(jax, explicit=True), jax.sharding.PartitionSpec("data")
    given = [random.normal(size=shape) for shape in ((8, 16), (16,))]

    def gradients(x, weight):
        return jax.grad(lambda x, w: jax.numpy.sin(fo.rms_norm(x, w)).sum(), (0, 1))(x, weight)

    expected = gradients(*given)
    with jax.set_mesh(mesh):
        x, weight = jax.device_put(given[0], spec), jax.device_put(given[1], jax.sharding.PartitionSpec())
        found = jax.jit(gradients)(x, weight)
        assert [str(jax.typeof(y)) for y in found] == ["float64[8@data,16]", "float64[16]"]
        assert "all-gather" not in jax.jit(gradients).lower(x, weight).compile().as_text()
        tangent = jax.jit(lambda x: jax.jvp(lambda x: fo.rms_norm(x, weight), (x,), (x,))[1])(x)
        assert str(jax.typeof(tangent)) == "float64[8@data,16]"
        total = jax.device_put(np.ones((16, 16)), jax.sharding.PartitionSpec())
        total = jax.jit(lambda t, x: fo.accumulate_matmul(t, x, x, transpose_a=True))(total, x)
        assert str(jax.typeof(total)) == "float64[16,16]"
    np.testing.assert_allclose(total, 1 + given[0].T @ given[0], **CLOSE)
    for got, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, exact, **CLOSE)


def test_updates_of_shards(jax_cpu, random):
    """A donated step writes the shards of parameters and states in place; sums of products are summed over devices."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    sharding = jax.sharding.NamedSharding(mesh_of(jax), jax.sharding.PartitionSpec("data"))
    arrays = [random.normal(size=(8, 3)) ** 2 for _ in range(8)]

    count = jax.numpy.zeros(())

    def step(params, moments, squares, grads):
        return fo.ops.adamw(params, grads, moments, squares, [], [], [], 0.1, count, None, None, None)[:3]

    def lists(place):
        return [[place(x) for x in arrays[i : i + 2]] for i in range(0, 8, 2)]

    program = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*lists(lambda x: jax.device_put(x, sharding))).compile()
    text = program.as_text()
    assert "all-gather" not in text and "f64[2,3]{1,0} copy(" not in text
    found = program(*lists(lambda x: jax.device_put(x, sharding)))
    for got, expected in zip(jax.tree.leaves(found), jax.tree.leaves(step(*lists(jax_cpu.from_numpy))), strict=True):
        np.testing.assert_array_equal(got, expected)

    total, a = np.ones((3, 3)), arrays[0]
    program = jax.jit(lambda t, a: fo.accumulate_matmul(t, a, a, transpose_a=True))
    np.testing.assert_allclose(program(total, jax.device_put(a, sharding)), 1 + a.T @ a, **CLOSE)
