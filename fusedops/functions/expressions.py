"""Operators of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusedops.expressions.function import Elementwise
from fusedops.functions.common import Refused, Tensor, TensorLike
from fusedops.functions.refusal import refuse

expressions: Any = None  # a framework's module of expressions


def elementwise(
    expression: str, *more: Refused, inputs: Sequence[str] | None = None, name: str | None = None, **others: Refused
) -> Elementwise[TensorLike, Tensor]:
    """A function of tensors from an expression: one kernel forward, one backward.

    Statements are separated by `;` or line breaks: `variable = value`, and last a value, or `return a, b` for several.
    A value is made of `+ - * / **`, one comparison (1 where it holds, else 0), and functions:

    - of each element: abs, cos, erf, exp, expm1, floor, gelu, gelu_tanh, log, log1p, relu, rsqrt, sigmoid, sign, silu,
      sin, softplus, sqrt, tanh, max(a, b), min(a, b), where(condition, a, b)
    - over the last dimension, which stays with size 1: sum, mean, max and min, of one argument

    and of numbers, the constants e, inf, nan and pi, and inputs, which are all other names. The inputs of a call
    broadcast as NumPy's do.

    The kernel is generated. On a GPU it is compiled when it is first called, by NVRTC, and kept on disk for later
    processes, in $FUSEDOPS_CACHE_DIR or ~/.cache/fusedops. On a CPU it is interpreted, block by block.

    Args:
        expression: the text, at most 10 000 characters, 500 operations and four results.
        inputs: the names of the inputs, in the order in which the function takes them; at most eight. By default in the
            order in which they first appear.
        name: of the function, in error messages and graphs: the operator is `<name>_<digits>`, of which the digits
            follow from the expression.

    Returns:
        A function that takes the inputs by position or by name: tensors, or numbers for some of them. Floating tensors
        have one dtype, or float32 beside one dtype of 16 bits, in any order. Tensors of bool and of integers may stand
        beside these; a bool counts as 0 or 1. The result has the 16-bit dtype if a tensor has one, else that of the
        floating tensors, and float32 beside numbers alone. It has the shape to which all inputs broadcast, also those
        on which no value depends; one that is made of reductions and numbers alone has a last dimension of size 1.
        Reductions, too, are over the rows of that shape; of no elements, sum is 0, mean NaN, max -inf and min inf. The
        function's `source` is the kernel in C++, its `derivative` an expression.

    Gradient:
        The derivative of the expression, made symbolically, to any order. Gradients of inputs that were broadcast are
        sums in a fixed order. At ties, max and min of two share the gradient; those of a row share it among all. A row
        whose max or min is NaN has gradient NaN. abs, relu, sign and floor have slope 0 at a jump or kink. `where`
        selects gradients: the branch that is not taken has none, even if its slope is infinite or NaN, nor has the
        condition. Numbers, and tensors of bool or integers, have no gradient.

    Raises:
        ValueError: the expression is not one; the message shows the place. A name is not allowed.
        TypeError: the expression or a name is not a string. In a call: too many or too few inputs, an unknown name, or
            an input that is neither a tensor nor a number.
        RuntimeError (PyTorch), InvalidArgumentError or ValueError (TensorFlow), ValueError (JAX): in a call: the inputs
            do not broadcast, or have the wrong dtype.

    PyTorch:
        >>> gate = fo.elementwise("silu(g) * u + scale * b", name="gate")
        >>> gate.inputs
        ('g', 'u', 'scale', 'b')
        >>> gate(torch.zeros(2, 3), torch.ones(2, 3), 0.5, torch.tensor([2.0, 4.0, 6.0]))
        tensor([[1., 2., 3.],
                [1., 2., 3.]])
        >>> print(fo.elementwise("x * w + 1").derivative)
        dx = sum_to(dy * w, x)
        dw = sum_to(dy * x, w)
        return dx, dw

    TensorFlow:
        >>> gate = fo.elementwise("silu(g) * u + scale * b", name="gate")
        >>> gate(tf.zeros([2, 3]), tf.ones([2, 3]), 0.5, tf.constant([2.0, 4.0, 6.0])).numpy()
        array([[1., 2., 3.],
               [1., 2., 3.]], dtype=float32)

    Source: Griewank and Walther, "Evaluating derivatives", 2008, for the derivative.
    """
    if more or others:
        refuse("elementwise", more, others)
    return expressions.elementwise(expression, inputs, name)
