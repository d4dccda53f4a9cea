"""The derivative of every operator, written once for both frameworks.

A formula is a vector-Jacobian product: `formula(f, c, *dy)` gets the upstream gradient of each output and returns the
gradient of each differentiable input by name. A value may be a function, which is called only if that gradient is
wanted; a missing name means zero.

`f` holds every operator (`f.axpby(a, x, b)`, differentiable itself, which makes the second derivative) and a few tensor
functions that both frameworks have: `multiply`, `reshape_rows`, `transpose`, `rank`. `c` holds what the operator was
called with, by the names of its declaration: the inputs and outputs named in `saves`, the attributes, and
`c.wanted(input)`. An upstream gradient is None where nothing flows back.

Backward operators are linear in `dy`. Forward mode is therefore the gradient of a formula with respect to `dy`, and
needs no formula of its own.
"""

from fusedops.gradients import elementwise as elementwise
from fusedops.gradients import products as products
from fusedops.gradients.registry import Formula, Gradient, gradient_of

__all__ = ["Formula", "Gradient", "gradient_of"]
