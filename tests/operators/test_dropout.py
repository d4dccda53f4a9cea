"""Dropout: its random numbers, the sources of seeds, and norms with dropout on their input."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.dropout import keep_mask, philox, words
from tests.helpers.frameworks import Backend

NORMS = ("add_rms_norm", "add_layer_norm")


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_the_generator(counter, key, expected):
    """Known answers for the reference generator of all tests, from Random123, its authors' library."""
    of_counter, of_key, of_expected = (
        np.array([int(word, 16) for word in text.split()], np.uint64) for text in (counter, key, expected)
    )
    np.testing.assert_array_equal(philox(of_counter, of_key), of_expected)


def test_every_bit_of_a_word_counts(any_backend):
    """An element is kept if the rate equals its word, and dropped at the next higher rate."""
    seed = (0x299F31D0_A4093822, 0x03707344_13198A2E)
    x = any_backend.tensor(np.ones(9), "float32")
    for i, word in enumerate(words(seed, 0, 9)):
        for rate, is_kept in ((int(word) / 2**32, True), ((int(word) + 1) / 2**32, False)):
            (y,) = any_backend.call("dropout", {"x": x, "seed": seed}, {"rate": rate})
            assert (any_backend.to_numpy(y)[i] != 0) == is_kept


def test_dropped_elements_are_independent(any_backend):
    """The rate of kept elements, and their independence of neighbours, other rows, other offsets and keys: each within
    five standard deviations."""
    rows, columns = 512, 1024
    x = any_backend.tensor(np.ones((rows, columns)), "float32")

    def deviation(rate, seed):
        (y,) = any_backend.call("dropout", {"x": x, "seed": seed}, {"rate": rate})
        return ((any_backend.to_numpy(y) != 0) - (1 - rate)) / np.sqrt(rate * (1 - rate))

    for rate in (0.1, 0.5, 0.9):
        first = deviation(rate, (7, 0))
        others = [deviation(rate, seed) for seed in ((7, 1), (8, 0), (7, -1))]
        assert abs(first.sum()) < 5 * np.sqrt(first.size)
        for shift in (1, 2, 3, 4, 8, columns, 4 * columns):
            assert abs(np.dot(first.ravel()[shift:], first.ravel()[:-shift])) < 5 * np.sqrt(first.size - shift)
        for other in others:
            assert abs(np.sum(first * other)) < 5 * np.sqrt(first.size)


def is_zero(backend: Backend, x) -> np.ndarray:
    return backend.to_numpy(x) == 0


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("name", ["dropout", "dropout_add"])
def test_without_a_seed(any_backend, name):
    """Another mask at each call, the same in its backward, and the same again after the framework is seeded."""
    set_seed = any_backend.torch.manual_seed if any_backend.framework == "torch" else any_backend.tf.random.set_seed
    inputs = {"x": any_backend.tensor(np.ones(1000), "float32")}
    if name == "dropout_add":
        inputs["residual"] = any_backend.tensor(np.zeros(1000), "float32")

    def draw():
        (y,), gradients = any_backend.gradients(name, inputs, {"rate": 0.5}, ("x",))
        np.testing.assert_array_equal(is_zero(any_backend, y), is_zero(any_backend, gradients["x"]))
        return is_zero(any_backend, y)

    set_seed(3)
    first, second = draw(), draw()
    assert (first != second).any()
    set_seed(3)
    np.testing.assert_array_equal(first, draw())
    np.testing.assert_array_equal(second, draw())


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("wanted", [("x", "residual", "weight"), ("x",), ("residual",)], ids=len)
def test_norms_are_norms_of_dropout(any_backend, name, wanted, random):
    """Values, gradients and second derivatives of the fused operator equal those of two operators."""
    arrays = {key: random.standard_normal((5, 37)) for key in ("x", "residual")}
    tensors = {key: any_backend.tensor(value, "float64") for key, value in arrays.items()}
    tensors["weight"] = any_backend.tensor(random.standard_normal(37), "float64")
    seed, public = (5, 6), any_backend.functions

    def fused(x, residual, weight):
        return getattr(public, name)(x, residual, weight, dropout=0.3, seed=seed)

    def in_two(x, residual, weight):
        return getattr(public, name)(public.dropout(x, 0.3, seed), residual, weight)

    def derivatives(function):
        if any_backend.framework == "torch":
            torch = any_backend.torch
            leaves = {key: x.clone().requires_grad_(key in wanted) for key, x in tensors.items()}
            outputs = function(**leaves)
            inputs = [leaves[key] for key in wanted]
            first = torch.autograd.grad(sum(y.sin().sum() for y in outputs), inputs, create_graph=True)
            second = torch.autograd.grad(sum(g.sin().sum() for g in first), inputs)
            of_sum = torch.autograd.grad(function(**leaves)[1].sin().sum(), [leaves["x"]]) if "x" in wanted else ()
            return *outputs, *first, *second, *of_sum
        tf = any_backend.tf
        inputs = [tensors[key] for key in wanted]
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(inputs)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(inputs)
                outputs = function(**tensors)
                total = sum(tf.reduce_sum(tf.sin(y)) for y in outputs)
                of_sum = tf.reduce_sum(tf.sin(outputs[1]))
            first = inner.gradient(total, inputs)
            again = sum(tf.reduce_sum(tf.sin(g)) for g in first)
        return *outputs, *first, *outer.gradient(again, inputs), *inner.gradient(of_sum, inputs[:1])

    for got, expected in zip(derivatives(fused), derivatives(in_two), strict=True):
        np.testing.assert_allclose(any_backend.to_numpy(got), any_backend.to_numpy(expected), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["dropout", "dropout_add"])
@pytest.mark.parametrize(
    "place",
    [(0, 0, 0), (15, 0, 0), (32, 16, 80), (3, 5, 12), (1, 1, 3), (64, 1000, 2000), (2**40, 3000, 2**33)],
    ids=str,
)
def test_a_part_of_a_call(any_backend, dtype, name, place):
    """Elements have the words of their places in the whole tensor: those of a mask by the generator's definition."""
    seed = (2**62 + 5, -7, *place)
    inputs = {"x": any_backend.tensor(np.ones((3, 1001)), dtype)}
    if name == "dropout_add":
        inputs["residual"] = any_backend.tensor(np.zeros((3, 1001)), dtype)
    (y,) = any_backend.call(name, inputs, {"rate": 0.5, "seed": any_backend.tensor(np.array(seed), "int64")})
    np.testing.assert_array_equal(is_zero(any_backend, y), ~keep_mask((3, 1001), 0.5, seed))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("columns", [7, 4096, 40_000, 262_144])
def test_norms_of_any_length(any_backend, name, is_part, columns, random):
    """A row's positions are those of `dropout` in every kernel."""
    x, residual = (any_backend.tensor(random.standard_normal((3, columns)), "bfloat16") for _ in range(2))
    seed = (3, 4, columns, columns, 2 * columns) if is_part else (3, 4)  # a part has every other row
    options = {"dropout": 0.5, "seed": any_backend.tensor(np.array(seed), "int64")}
    (_, s), gradients = any_backend.gradients(name, {"x": x, "residual": residual}, options, ("x", "residual"))
    mask = keep_mask((3, columns), 0.5, seed)
    arrays = [any_backend.to_numpy(t).astype(np.float32) for t in (x, residual, s, *gradients.values())]
    x, residual, s, dx, dresidual = arrays
    np.testing.assert_array_equal(s, (np.where(mask, 2 * x, 0) + residual).astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(dx, np.where(mask, 2 * dresidual, 0), rtol=2**-7)


@pytest.mark.parametrize("name", NORMS)
def test_errors_of_norms_name_their_arguments(any_backend, name):
    x = any_backend.tensor(np.ones((2, 3)), "float32")
    for dropout, expected in (
        (1.0, "in [0, 1); got 1"),
        (float("nan"), "in [0, 1); got nan"),
        ("a", "a number; got 'a'"),
    ):
        with pytest.raises(any_backend.errors, match=re.escape(f"fusedops.{name}: dropout must be {expected}")):
            any_backend.call(name, {"x": x, "residual": x}, {"dropout": dropout, "seed": (1, 2)})


INPUTS = {  # x: a tensor, r: one number for each row, s: the seed, -: absent
    "add_rms_norm": "xx-s",
    "add_layer_norm": "xx--s",
    "rms_norm_backward": "xx-r-s",
    "layer_norm_backward": "xx--rr-s",
    "attention": "xxx--s----",
    "attention_lse": "xxx--s----",
    "attention_backward": "xxxxxr--s-----",
}


@pytest.mark.parametrize(("name", "inputs"), INPUTS.items(), ids=INPUTS)
def test_a_seed_and_a_rate_go_together(any_backend, name, inputs):
    """The operators refuse one without the other, which the public functions never pass."""
    shapes, seed = {"x": (2, 2, 2), "r": (2, 2)}, any_backend.from_numpy(np.array([1, 2]))
    tensors = {x: any_backend.from_numpy(np.ones(shape, np.float32)) for x, shape in shapes.items()}
    for given, options, got in (
        (None, {"dropout": 0.5}, "none with a dropout of 0.5"),
        (seed, {}, "a seed with a dropout of 0"),
    ):
        function = name.removesuffix("_lse")
        sentence = f"fusedops.{function}: seed must be given if and only if dropout is positive; got {got}"
        with pytest.raises(any_backend.errors, match=re.escape(sentence)):
            getattr(any_backend.functions.ops, name)(*map({**tensors, "s": given}.get, inputs), **options)


def functions_of_x(backend: Backend, seed=None):
    """Functions of a matrix, whose zeros mark the dropped elements."""
    public = backend.functions
    k, v = (backend.tensor(array, "float32") for array in (np.zeros((16, 1, 1)), np.eye(16)[:, None]))

    def attention(x):
        """The probabilities of 8 queries over 16 identical keys, each made 1 or 0, times x."""
        return 16 * public.attention(x[:, None, :1] * 0, k, v, dropout=0.5, seed=seed)[:, 0] * x

    return {
        "dropout": lambda x: public.dropout(x, 0.5, seed),
        "add_rms_norm": lambda x: public.add_rms_norm(x, x * 0, dropout=0.5, seed=seed)[1],
        "attention": attention,
    }


@pytest.mark.parametrize("name", ["dropout", "add_rms_norm", "attention"])
def test_vmap(torch_backend, name):
    """With a seed, every mapped call drops the same elements; without one, vmap's randomness option decides if draws
    differ."""
    torch = torch_backend.torch
    x = torch_backend.tensor(np.ones((3, 8, 16)), "float32")
    once, drawn = functions_of_x(torch_backend, (1, 2))[name], functions_of_x(torch_backend)[name]
    mask = torch.from_numpy(keep_mask((8, 16), 0.5, (1, 2))).to(x.device)
    assert (torch.vmap(once)(x) == 2.0 * mask).all()
    seeds = torch.tensor([[1, 2], [1, 3], [1, 2]], device=x.device)
    each = torch.vmap(lambda x, seed: functions_of_x(torch_backend, seed)[name](x))(x, seeds)
    assert (each[0] == each[2]).all() and (each[0] != each[1]).any() and (each[0] == 2.0 * mask).all()
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(drawn)(x)
    same = torch.vmap(drawn, randomness="same")(x)
    assert (same[0] == same[1]).all() and (same[0] == same[2]).all()
    different = torch.vmap(drawn, randomness="different")(x)
    assert (different[0] != different[1]).any() and (different[1] != different[2]).any()
    gradients = torch.vmap(torch.func.grad(lambda x: (once(x) * x).sum()))(x)
    assert ((gradients != 0) == mask).all()


@pytest.mark.parametrize("name", ["dropout", "add_rms_norm", "attention"])
def test_compiled_and_checkpointed(torch_backend, name):
    """With the same seed, compiled code draws the same numbers as eager code; a checkpoint draws them again for the
    backward."""
    torch = torch_backend.torch
    function = functions_of_x(torch_backend)[name]
    x = torch_backend.tensor(np.ones((8, 16)), "float32").requires_grad_()

    def run(function):
        torch.manual_seed(11)
        y = function(x)
        (gradient,) = torch.autograd.grad((y * y).sum(), x)
        torch.testing.assert_close(gradient, 2 * y * (y / x), rtol=0, atol=0)
        return y

    expected = run(function)
    assert (run(torch_backend.traced(function)) == expected).all()
    assert (run(lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)) == expected).all()


@pytest.mark.parametrize("name", ["dropout", "add_rms_norm", "attention"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_in_graphs_of_tensorflow(tf_backend, name, jit_compile):
    """Each run draws once, for the forward and its backward."""
    tf = tf_backend.tf
    function = functions_of_x(tf_backend)[name]
    x = tf_backend.tensor(np.ones((8, 16)), "float32")

    @tf.function(jit_compile=jit_compile)
    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x)

    (first, gradient), (second, _) = run(), run()
    np.testing.assert_array_equal(first.numpy(), gradient.numpy())
    assert (first.numpy() != second.numpy()).any()


@pytest.mark.parametrize("name", ["dropout", "add_rms_norm", "attention"])
def test_vectorized_map(tf_backend, name):
    tf = tf_backend.tf
    x = tf_backend.tensor(np.ones((3, 8, 16)), "float32")
    same = tf.vectorized_map(functions_of_x(tf_backend, (1, 2))[name], x).numpy()
    np.testing.assert_array_equal(same, np.broadcast_to(2.0 * keep_mask((8, 16), 0.5, (1, 2)), same.shape))
    drawn = tf.vectorized_map(functions_of_x(tf_backend)[name], x).numpy()
    assert (drawn[0] != drawn[1]).any() and (drawn[1] != drawn[2]).any()


def test_replays_of_a_cuda_graph_draw_anew(torch_gpu):
    torch = torch_gpu.torch
    x = torch.ones(1000, device="cuda")
    torch_gpu.functions.dropout(x, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch_gpu.functions.dropout(x, 0.5)
        z = torch_gpu.functions.dropout(x, 0.5, seed=(1, 2))
    masks = []
    for _ in range(2):
        graph.replay()
        masks.append(y.clone())
        np.testing.assert_array_equal(z.cpu().numpy() != 0, keep_mask((1000,), 0.5, (1, 2)))
    assert (masks[0] != masks[1]).any()


def test_positions_beyond_2_31(torch_gpu, alone):
    torch, first, count = torch_gpu.torch, 2**31 - 7, 20
    y = torch_gpu.functions.dropout(torch.ones(first + count, device="cuda", dtype=torch.bfloat16), 0.5, seed=(1, 2))
    np.testing.assert_array_equal(y[first:].float().cpu().numpy() != 0, words((1, 2), first, count) >= 2**31)
    del y
    torch.cuda.empty_cache()
