"""Second derivatives: those of the backward operators, written once for both frameworks. First ones are in the table.

A formula is a vector-Jacobian product: `formula(f, c, *dy)` gets the upstream gradient of each output and returns the
gradient of each differentiable input by name. A value may be a function, which is called only if that gradient is
wanted; a missing name means zero. Saved outputs get no gradient: a formula treats them as functions of the inputs.

`c` holds what the operator was called with, by the names of its declaration: the inputs and outputs named in `saves`,
the attributes, and `c.wanted(input)`. An absent input is None. An upstream gradient is None where nothing flows back,
and where the call did not need the output.

`f` holds every operator (`f.axpby(a, x, b)`, differentiable itself, which makes the second derivative) and a few tensor
functions that both frameworks have:

    multiply, erf, rsqrt, sigmoid, tanh   of each element
    sum                                   of all elements
    sum_last, mean_last                   over the last dimension, which stays, with size 1
    expand_last, first                    adds a last dimension of size 1, takes it away
    halves                                of the last dimension
    log_softmax                           over the last dimension
    one_hot(labels, like)                 as bools, with like's last dimension; none for a label outside of it
    unequal, where(condition, x)          as bools; x where it is true, else 0
    compute(x), cast(x, like)             to the dtype to compute in; to like's
    constant                              the same value without a derivative
    features                              the size of the last dimension, a number or of x's dtype
    product                               of the matrices in the last two dimensions
    transpose_last, exchange_heads        exchange the last two dimensions; the two before the last
    repeat_heads(x, like)                 each head as often, side by side, as makes those of like [..., H, T, S]
    columns                               the positions [S] of the columns of [..., T, S]
    beside                                those [T, 1] that the rows stand beside: the last row beside the last column
    packed(scores, offsets_q, offsets_k)  the sequence of each row [T, 1], of each column [S]; `beside` in each sequence
    probabilities(scores, kept)           the softmax over the columns that all of some bools keep; elsewhere 0
    log_sum_exp(scores, kept)             the logarithm of the sum of their exponentials; -inf where none is kept
    vjp(function, inputs, upstream)       the gradients of inputs, taken by the framework

First derivatives, which fusedops/derivatives.py makes of the table, are formulas of the same kind. Backward operators
are linear in `dy`. Forward mode is therefore the gradient of a formula with respect to `dy`, and needs no formula of
its own. Most second derivatives are `composite.second_derivative`. A formula that takes several operators or functions
computes in the compute dtype, and rounds once.
"""

from fusedops.gradients import activations as activations
from fusedops.gradients import attention as attention
from fusedops.gradients import elementwise as elementwise
from fusedops.gradients import loss as loss
from fusedops.gradients import normalization as normalization
from fusedops.gradients import products as products
from fusedops.gradients.registry import GRADIENTS, REFUSED, Formula, Gradient

__all__ = ["GRADIENTS", "REFUSED", "Formula", "Gradient"]
