"""The record of an operator: work, inputs, formula, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Function = Callable[..., Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    shape: Shape
    rows: int | None  # the axis along which tensors are divided into rows; None: shared by all rows
    dtype: str = ""  # if it is not the case's


def whole(case: Any) -> Layout:
    return Layout(case.shape, 0)


def of_a_row(case: Any) -> Layout:
    """One element per column, as in weights."""
    return Layout(case.shape[-1:], None)


def scalar(case: Any) -> Layout:
    return Layout((), None)


@dataclass(frozen=True)
class Input:
    """An input, normally distributed by default."""

    name: str
    layout: Callable[[Any], Layout] | None = whole  # of a case; None: the number `values` instead of a tensor
    gradient: bool = True  # True if the backward computes its gradient
    parameter: bool = False  # may have another dtype than the other inputs
    classes: Callable[[Any], int] | None = None  # of a case: values are integers below it
    integers: Callable[[Any], np.ndarray] | None = None  # of a case: the values, which keep their dtype
    values: float | Callable[[Shape], np.ndarray] | None = None  # instead of random ones
    keyword: bool = False  # a keyword argument of the public function; behind all others


@dataclass(frozen=True)
class Operator:
    name: str
    inputs: tuple[Input, ...]  # in the public function's order
    outputs: Mapping[str, Callable[[Any], Layout]] = field(default_factory=lambda: {"out": whole})
    options: Callable[[Any], dict[str, Any]] | None = None  # of a case: options of the public function
    elementwise: bool = False  # otherwise over rows, or a product
    mean: bool = False  # a mean over all rows, to which some rows contribute their share
    random: bool = False  # draws other random numbers than every baseline: results are not compared
    in_8_bits: bool = False  # the first result: compared within the rounding of float8, without a backward
    sums: bool = False  # adds its first two inputs, which therefore share one gradient
    # Arguments of the operator in torch.ops.fusedops, made from the inputs where they differ.
    registered: Callable[..., tuple[Any, ...]] | None = None

    # Tensors of the first input's size moved by the forward and the backward: each input read once, each output written
    # once. 0: the gradient is the upstream gradient, and there is nothing to measure.
    moves: tuple[float, float] = (0, 0)
    # Arithmetic operations per element of the first input, of the forward and the backward. A function such as exp
    # counts as one, as do the comparison of a maximum and each term of a sum.
    operations: tuple[int, int] = (0, 0)

    # The code of a user without fusedops, over the functions `n` of a framework. Compilers get it, and in float64 it is
    # the reference. 16-bit inputs are computed in float32 (`n.upcast`) and rounded once, in x's dtype (`n.like`).
    formula: Callable[[Any], Function] | None = None
    # Baselines: PyTorch's own function, from the module torch; Liger's, from liger_kernel.ops; QuACK's, from quack;
    # Keras's layer, by its class and epsilon.
    torch: Callable[[Any], Function] | None = None
    liger: Callable[[Any], Function] | None = None
    quack: Callable[[Any], Function] | None = None
    quack_parameters: str = ""  # the only dtype of parameters that QuACK takes
    keras: tuple[str, float] | None = None
    torch_others: Mapping[str, Callable[[Any], Function]] = field(default_factory=dict)  # by baseline; on GPUs

    # The matrix products of a layer's forward, made of the values of a call: pairs of an operand [m, k] and a weight
    # [n, k]. None: x times each input whose name ends with "weight".
    products: Callable[[Mapping[str, Any]], list[tuple[Any, Any]]] | None = None

    function: str = ""  # the public function, if its name differs
    adapted: Callable[[Function], Function] | None = None  # makes a function of a case's inputs of the public one
    without: str = ""  # the operator without an option, timed beside this one in PyTorch

    # The operator as an expression over the names of its inputs. `own`: fusedops has no operator for it.
    expression: str = ""
    own: bool = False

    # Shapes: for given rows and columns, the largest rows and columns, and for a call that is all overhead.
    shape: Callable[[int, int], Shape] = lambda rows, columns: (rows, columns)
    largest: tuple[int, int] = (16384, 8192)
    smallest: Shape = (4, 16)

    # Goals: the largest multiples of the time of a copy, for a linear layer of its products, on a GPU, for the forward
    # and for forward and backward, 0 for none; speedups over TensorFlow's baselines on a CPU; True if calls in
    # TensorFlow have goals, as all elementwise ones do.
    floors: tuple[float, float] = (0.0, 0.0)
    tf_speeds: Mapping[str, float] = field(default_factory=lambda: {"XLA": 1.0})
    tf_calls: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(x.name for x in self.inputs)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Inputs whose gradients a backward computes."""
        return tuple(x.name for x in self.inputs if x.gradient)

    @property
    def frozen_weights(self) -> int:
        """Number of weights without a gradient. They follow those with one."""
        return sum(x.name.endswith("weight") and not x.gradient for x in self.inputs)
