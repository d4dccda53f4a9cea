"""Second derivatives: the gradients of backward operators, written once for all frameworks.

The table declares first derivatives, which fusedops/derivatives.py turns into formulas of the same kind.

A formula is a vector-Jacobian product: `formula(f, c, *dy)` takes the upstream gradient of each output and returns the
gradients of differentiable inputs by name. A value may be a function, which is called only if that gradient is wanted.
A missing name means zero. Saved outputs get no gradient: a formula treats them as functions of the inputs.

`c` has the arguments of the call by their declared names: the inputs and outputs in `saves`, the attributes, and
`c.wanted(input)`. An absent input is None. An upstream gradient is None if nothing flows back, or if the call did not
need the output.

`f` has every operator (`f.axpby(a, x, b)`, differentiable as well) and a few tensor functions of all frameworks:

    multiply, absolute, erf, log, rsqrt, sigmoid, tanh   elementwise
    sum                                   over all elements
    sum_last, mean_last                   over the last dimension, which keeps size 1
    broadcast(x, like)                    x with like's shape
    expand_last, first                    adds a last dimension of size 1, removes it
    halves, alternating                   the two halves of the last dimension; its even and its odd elements
    clamp(x, least, most)                 elementwise, with slope 1 at both bounds
    log_softmax                           over the last dimension
    one_hot(labels, like)                 bools with like's last dimension; all False for a label outside it
    unequal, where(condition, x)          bools; x where the condition is true, else 0
    compute(x), cast(x, like)             casts to the compute dtype; to like's dtype
    constant                              the same value without a gradient
    features                              the size of the last dimension, a number or of x's dtype
    product                               the matrix product of the last two dimensions
    transpose_last, exchange_heads        exchange the last two dimensions; the two before the last
    rows, repeat_rows(x, like)            [N, C] of [..., C]; [E, N, C], for the matrices of like [E, ...]
    rows_as(x, like)                      [..., C] of [N, C], with the leading dimensions of like [..., K]
    repeat_heads(x, like)                 repeats each head of x, for the heads of like [..., H, T, S]
    columns                               the column indices [S] of [..., T, S]
    diagonal(scores, first)               the diagonal's columns [..., T, 1]: rows plus `first` [...], or S - T for None
    packed(scores, offsets_q, offsets_k)  the sequence of each row [T, 1] and column [S], and `diagonal` per sequence
    beside_sinks(scores, masks, sinks)    the scores with the sinks [H] as one more column, and a mask of them
    but_last                              all columns but the last
    probabilities(scores, masks)          softmax over the columns that all masks let through; 0 elsewhere
    log_sum_exp(scores, masks)            the log of the sum of these exponentials; -inf where none is visible
    vjp(function, inputs, upstream)       the gradients of inputs, by the framework's autograd

Backward operators are linear in `dy`. Forward mode is therefore the gradient of a formula with respect to `dy`, and
needs no formula of its own. Most second derivatives are `composite.second_derivative`. A formula that chains operators
computes in the compute dtype and rounds once.
"""

from fusedops.gradients import activations as activations
from fusedops.gradients import attention as attention
from fusedops.gradients import elementwise as elementwise
from fusedops.gradients import experts as experts
from fusedops.gradients import loss as loss
from fusedops.gradients import normalization as normalization
from fusedops.gradients import products as products
from fusedops.gradients.registry import GRADIENTS, REFUSED, Formula, Gradient

__all__ = ["GRADIENTS", "REFUSED", "Formula", "Gradient"]
