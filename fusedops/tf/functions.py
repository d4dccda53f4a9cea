"""The public functions of fusedops.tf: those of fusedops/functions/ over TensorFlow's operators and tensors.

The build writes their types, for editors and type checkers, into functions.pyi.
"""

from __future__ import annotations

import tensorflow as tf

from fusedops import checks
from fusedops.functions import OF_TENSORS, define, signature
from fusedops.tf import expressions
from fusedops.tf.naming import with_name
from fusedops.tf.operators import OPERATORS as ops
from fusedops.tf.randomness import seed_of
from fusedops.tf.recording import may_keep_gradient, may_need_gradient
from fusedops.tf.tensors import Tensor, TensorLike, Variable
from fusedops.tf.text import unconverted


def integers_of(function: str, name: str, value: object, q: Tensor) -> object:
    """A tensor or None unchanged; an integer as a tensor of q's leading dimensions."""
    integer = checks.one_for_all(function, name, value)
    return value if integer is None else tf.fill(tf.shape(q)[:-3], tf.constant(integer, tf.int64))


def ring_of_context(function: str, **unsupported: object) -> None:
    """None: TensorFlow has no attention that shards positions over processes."""


__all__ = define(globals())
for _name in __all__:
    _plain = unconverted(globals()[_name])
    globals()[_name] = with_name(_plain, signature(_plain, "tf")) if _name in OF_TENSORS else _plain
