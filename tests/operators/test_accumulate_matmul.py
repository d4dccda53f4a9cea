"""accumulate_matmul: every kernel of its products, untouched memory, and refused calls."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.numerics import assert_accurate, assert_same_bits, compute_dtype, numpy_dtype
from tests.helpers.updates import UPDATES, Call

UPDATE = next(update for update in UPDATES if update.name == "accumulate_matmul")

SIZES = (  # M, N, K
    (1408, 1536, 96),  # tiles that fill a GPU
    (512, 1024, 96),
    (256, 136, 4096),  # a few tiles, and splits
    (129, 65, 600),  # rows that TMA cannot read
    (328, 64, 48),  # a few tiles, and a short sum
    (1032, 2049, 64),  # the total's rows are not aligned
    (8, 8, 20_000),
)


def call(m, n, k, dtype, transposes, random):
    a, b = (random.normal(size=size).astype(numpy_dtype(dtype)) for size in ((m, k), (k, n)))
    if transposes[0]:
        a = np.ascontiguousarray(a.T)
    if transposes[1]:
        b = np.ascontiguousarray(b.T)
    total = random.normal(size=(m, n)).astype(compute_dtype(dtype))
    return Call(
        {"total": [total], "a": [a], "b": [b]}, options={"transpose_a": transposes[0], "transpose_b": transposes[1]}
    )


@pytest.mark.parametrize("transposes", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(both_backends, size, transposes, dtype, random):
    """Against float64; the same bits in both frameworks, and in a repeated call."""
    given = call(*size, dtype, transposes, random)
    exact = {name: [x.astype("float64") for x in arrays] for name, arrays in given.lists.items()}
    ((value, magnitude, roundings),) = UPDATE.reference(exact, {}, given.options)["total"]
    found = [UPDATE.run(backend, given)["total"][0] for backend in (*both_backends, both_backends[0])]
    # float64's reference is as exact as the kernel: its own roundings count, too.
    assert_accurate(found[0], value, magnitude, (2 if dtype == "float64" else 1) * roundings)
    for other in found[1:]:
        assert_same_bits(other, found[0])


def test_what_is_added_is_not_rounded(any_backend, random):
    """Products of bfloat16 that would be lost by rounding, or by a sum in 16 bits."""
    total, a, b = np.ones((1, 1)), np.full((1, 4), 2.0**-8), np.full((4, 1), 2.0**-8)
    dtype = numpy_dtype("bfloat16")
    given = Call({"total": [total.astype("float32")], "a": [a.astype(dtype)], "b": [b.astype(dtype)]})
    for _ in range(3):
        (got,) = UPDATE.run(any_backend, given)["total"]
        given = given.changed("total", [got])
    assert got.item() == 1 + 3 * 4 * 2.0**-16


def test_a_large_total(any_backend):
    """The products are summed before they are added to the total: a split of 256 alone would be lost."""
    wide, narrow = np.full((1, 3), 2.0**26, "float32"), numpy_dtype("bfloat16")
    a, b = np.full((1, 2560), 3 / 256).astype(narrow), np.ones((2560, 3), narrow)
    (got,) = UPDATE.run(any_backend, Call({"total": [wide], "a": [a], "b": [b]}))["total"]
    np.testing.assert_array_equal(got, wide + 32)  # 30, rounded to a multiple of 8


def test_rows_of_a_wider_matrix(torch_backend, dtype, random):
    """Rows that are read transposed, whose number is not a multiple of 8: TMA leaves some of them."""
    given = call(1032, 1024, 264, dtype, (True, False), random)
    rows = 1027
    total, a, b = (torch_backend.from_numpy(arrays[0]) for arrays in given.lists.values())
    torch_backend.functions.accumulate_matmul(total[:rows], a[:, :rows], b, transpose_a=True)
    exact = {name: [x.astype("float64") for x in arrays] for name, arrays in given.lists.items()}
    ((value, magnitude, roundings),) = UPDATE.reference(exact, {}, given.options)["total"]
    assert_accurate(torch_backend.to_numpy(total[:rows]), value[:rows], magnitude[:rows], 2 * roundings)
    assert_same_bits(torch_backend.to_numpy(total[rows:]), given.lists["total"][0][rows:])


def test_nan_and_infinity(any_backend, dtype):
    inf, nan = np.inf, np.nan
    total = np.array([[0, inf, nan, 1]]).T
    a = np.array([[inf, -inf, 1, nan]]).T
    wide, narrow = compute_dtype(dtype), numpy_dtype(dtype)
    given = Call({"total": [total.astype(wide)], "a": [a.astype(narrow)], "b": [np.ones((1, 1)).astype(narrow)]})
    np.testing.assert_array_equal(UPDATE.run(any_backend, given)["total"][0], [[inf], [nan], [nan], [nan]])


def test_parts_of_a_larger_total(torch_backend, dtype, random):
    """Rows and columns of a larger total, whose other elements stay unchanged; strided and misaligned matrices."""
    torch, given = torch_backend.torch, call(40, 24, 64, dtype, (True, False), random)
    expected = UPDATE.run(torch_backend, given)["total"][0]
    total, a, b = (torch_backend.from_numpy(arrays[0]) for arrays in given.lists.values())

    def spread(x):
        larger = torch.full((x.shape[0], x.shape[1] + 3), 5.0, dtype=x.dtype, device=x.device)
        larger[:, 1:-2] = x
        return larger

    larger = spread(total)
    torch_backend.functions.accumulate_matmul(larger[:, 1:-2], a, b, transpose_a=True)
    assert_same_bits(torch_backend.to_numpy(larger[:, 1:-2]), expected)
    assert (larger[:, 0] == 5).all() and (larger[:, -2:] == 5).all()
    torch_backend.functions.accumulate_matmul(total, spread(a)[:, 1:-2], spread(b)[:, 1:-2], transpose_a=True)
    # Misaligned matrices may be summed in another order.
    exact = {name: [x.astype("float64") for x in arrays] for name, arrays in given.lists.items()}
    ((value, magnitude, roundings),) = UPDATE.reference(exact, {}, given.options)["total"]
    assert_accurate(torch_backend.to_numpy(total), value, magnitude, 2 * roundings)


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_a_total_at_any_address(torch_backend, size, dtype, random):
    torch, given = torch_backend.torch, call(*size, dtype, (True, False), random)
    total, a, b = (torch_backend.from_numpy(arrays[0]) for arrays in given.lists.values())
    memory = torch.full((total.numel() + 2,), 5.0, dtype=total.dtype, device=total.device)
    misaligned = memory[1:-1].view_as(total).copy_(total)
    torch_backend.functions.accumulate_matmul(misaligned, a, b, transpose_a=True)
    exact = {name: [x.astype("float64") for x in arrays] for name, arrays in given.lists.items()}
    ((value, magnitude, roundings),) = UPDATE.reference(exact, {}, given.options)["total"]
    assert_accurate(torch_backend.to_numpy(misaligned), value, magnitude, 2 * roundings)
    assert memory[0] == 5 and memory[-1] == 5


def test_more_than_2_31_elements(torch_gpu):
    """A total of that size, and factors of that size: rows at both ends and around 2^31."""
    torch, accumulate = torch_gpu.torch, torch_gpu.functions.accumulate_matmul
    depth, columns = 64, 8192
    rows = 2**31 // columns + 136
    a, b = (torch.randn(depth, size, device="cuda", dtype=torch.bfloat16) for size in (rows, columns))
    total = torch.ones(rows, columns, device="cuda")
    accumulate(total, a, b, transpose_a=True)
    for middle in (64, 2**31 // columns, rows - 64):
        part = slice(middle - 64, middle + 64)
        expected = 1 + a[:, part].double().mT @ b.double()
        torch.testing.assert_close(total[part].double(), expected, rtol=0, atol=1e-4)
    del total

    total = torch.ones(1024, 8, device="cuda")
    deep = torch.ones(2**31 // 1024 + 1000, 1024, device="cuda", dtype=torch.bfloat16)
    accumulate(total, deep, deep[:, :8], transpose_a=True)
    assert (total == 1 + len(deep)).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_second_gpu(torch_gpu, tf_gpu, size, dtype, random):
    """The call runs on its tensors' GPU, whichever is current; its bits equal the first GPU's."""
    torch, tf = torch_gpu.torch, tf_gpu.tf
    if torch.cuda.device_count() < 2:
        pytest.skip("GPU: one only")
    torch.cuda.set_device(0)  # TensorFlow, once initialized in this process, leaves the last GPU current
    given = call(*size, dtype, (True, False), random)
    expected = UPDATE.run(torch_gpu, given)["total"][0]
    tensors = [torch_gpu.from_numpy(arrays[0]).to("cuda:1") for arrays in given.lists.values()]
    torch_gpu.functions.accumulate_matmul(*tensors, transpose_a=True)
    assert torch.cuda.current_device() == 0
    assert_same_bits(torch_gpu.to_numpy(tensors[0]), expected)
    with tf.device("/GPU:1"):
        total, a, b = (tf.identity(tf_gpu.from_numpy(arrays[0])) for arrays in given.lists.values())
        total = tf.Variable(total)
        tf_gpu.functions.accumulate_matmul(total, a, b, transpose_a=True)
    assert total.device.endswith("GPU:1")
    assert_same_bits(tf_gpu.to_numpy(total), expected)


REFUSED = (
    ((2, 3), "float32", (2, 4), (5, 3), "b must have 4 rows to multiply a of shape [2, 4]; got shape [5, 3]"),
    ((2, 2), "float32", (2, 4), (4, 3), "total must have the shape of the product, [2, 3]; got [2, 2]"),
    ((3,), "float32", (1, 4), (4, 3), "total must have the shape of the product, [1, 3]; got [3]"),
    ((2, 3), "float64", (2, 4), (4, 3), "total must be float32; got float64"),
    ((2, 3), "bfloat16", (2, 4), (4, 3), "total must be float32; got bfloat16"),
)


@pytest.mark.parametrize("shape, of_total, shape_a, shape_b, sentence", REFUSED)
def test_refused(any_backend, shape, of_total, shape_a, shape_b, sentence):
    lists = {"total": [np.ones(shape, numpy_dtype(of_total))]}
    lists |= {"a": [np.ones(shape_a, "float32")], "b": [np.ones(shape_b, "float32")]}
    with pytest.raises(any_backend.errors, match=re.escape(f"fusedops.accumulate_matmul: {sentence}")):
        UPDATE.run(any_backend, Call(lists))


def test_a_total_that_overlaps_a_factor_is_refused(torch_backend):
    """The kernel would read elements that it has written."""
    torch, accumulate = torch_backend.torch, torch_backend.functions.accumulate_matmul
    rows = torch.ones(12, 8, device=torch_backend.device)
    total, part, one = rows[:8], rows[4:], torch.ones(8, 8, device=torch_backend.device)
    for other in (part, part.mT, total):
        for operands, name in (((other, one), "a"), ((one, other), "b")):
            with pytest.raises(RuntimeError, match=f"to be updated; got memory within the range of {name}'s"):
                accumulate(total, *operands)
    assert (rows == 1).all()
    accumulate(total, rows[4:, ::2], one[:4])  # every second column, which is copied first
    accumulate(rows[:4], rows[4:8, :4], one[:4])  # other rows of the same tensor
    assert (rows[:4] == 1 + 4 + 4 * 5).all() and (rows[4:8] == 1 + 4).all() and (rows[8:] == 1).all()


@pytest.mark.parametrize("strides", [(0, 1), (2, 1), (1, 3)], ids=str)
def test_elements_that_share_memory(torch_backend, strides):
    torch = torch_backend.torch
    total = torch.zeros(32, device=torch_backend.device).as_strided((4, 4), strides)
    one = torch.ones(4, 4, device=torch_backend.device)
    with pytest.raises(RuntimeError, match="total must have an element of memory for each of its own"):
        torch_backend.functions.accumulate_matmul(total, one, one)
    assert (total == 0).all()


def test_autograd_sees_the_mutation(torch_backend):
    """A total that requires a gradient is refused, and autograd detects the change of a saved one."""
    torch, accumulate = torch_backend.torch, torch_backend.functions.accumulate_matmul
    total, one = (torch.ones(2, 2, device=torch_backend.device) for _ in range(2))
    for arguments in ([total.clone().requires_grad_(), one, one], [total, one.clone().requires_grad_(), one]):
        with pytest.raises(RuntimeError, match="accumulate_matmul"):
            accumulate(*arguments)
    y = total * one.clone().requires_grad_()
    accumulate(total, one, one)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_constant_total_is_refused(tf_backend):
    one = tf_backend.tf.ones([1, 1])
    with pytest.raises(TypeError, match=r"total is updated, and must be a tf\.Variable; got EagerTensor"):
        tf_backend.functions.accumulate_matmul(one, one, one)


@pytest.mark.parametrize("way", ["eager", "graph", "xla"])
def test_a_variable_that_is_also_read(tf_backend, way):
    """A value read from a variable shares its memory until the update."""
    tf, accumulate = tf_backend.tf, tf_backend.functions.accumulate_matmul
    with tf_backend.place:
        total = tf.Variable(tf.ones([2, 2]))

        def square():
            accumulate(total, total, total.read_value())

        (square if way == "eager" else tf.function(square, jit_compile=way == "xla"))()
    np.testing.assert_array_equal(total.numpy(), np.full((2, 2), 3))


def test_keras_variable(tf_backend):
    import keras

    with tf_backend.place:
        total = keras.Variable(np.ones((1, 1), "float32"))
        one = tf_backend.tf.ones([1, 1])
        tf_backend.functions.accumulate_matmul(total, one, one)

        def accumulate(x):
            tf_backend.functions.accumulate_matmul(total, one, one)
            return x

        keras.layers.Lambda(accumulate, dtype="mixed_bfloat16")(one)
    assert total.numpy().item() == 3


def test_gradient_of_a_function(tf_backend):
    """As documented: a custom gradient adds to a variable, also in a function."""
    tf, fo = tf_backend.tf, tf_backend.functions
    with tf_backend.place:
        weight, total = tf.Variable(tf.ones([3, 2])), tf.Variable(tf.zeros([3, 2]))
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])

        @tf.custom_gradient
        def layer(x, weight):
            def backward(dy):
                fo.accumulate_matmul(total, dy, x, transpose_a=True)
                return fo.matmul(dy, weight), None

            return fo.linear(x, weight), backward

        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x, weight.read_value()) ** 2)
            return tape.gradient(loss, x)

        for way in (step, tf.function(step)):
            total.assign(tf.zeros([3, 2]))
            for count in (1, 2):
                way()
                expected = count * 2 * np.array([[3.0, 7.0]] * 3) @ np.array([[1.0, 2.0], [3.0, 4.0]])
                np.testing.assert_allclose(total.numpy(), expected)
