"""What the benchmark must know of an operator: work, inputs, formula, and how others call theirs."""

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
    rows: int | None  # the axis along which all tensors are cut into rows; None: all rows share this one


def whole(case: Any) -> Layout:
    return Layout(case.shape, 0)


def of_a_row(case: Any) -> Layout:
    """One for each column, as weights are."""
    return Layout(case.shape[-1:], None)


def scalar(case: Any) -> Layout:
    return Layout((), None)


@dataclass(frozen=True)
class Input:
    """Normally distributed, unless it says otherwise."""

    name: str
    layout: Callable[[Any], Layout] | None = whole  # of a case; None: no tensor but the number `values`
    gradient: bool = True  # whether the backward computes one
    parameter: bool = False  # may have another dtype than the others
    classes: Callable[[Any], int] | None = None  # of a case: these are integers below that number
    values: float | Callable[[Shape], np.ndarray] | None = None  # not drawn


@dataclass(frozen=True)
class Operator:
    name: str
    inputs: tuple[Input, ...]  # in the public function's order
    outputs: Mapping[str, Callable[[Any], Layout]] = field(default_factory=lambda: {"out": whole})
    options: Callable[[Any], dict[str, Any]] | None = None  # of a case: those of the public function
    elementwise: bool = False  # else it is of rows, or a product
    mean: bool = False  # of all rows: some of them count for their share
    random: bool = False  # no two contenders draw the same: what they return is not compared
    in_8_bits: bool = False  # the first result: compared within the rounding of float8, without a backward
    sums: bool = False  # its first two inputs, which therefore have one gradient
    # Arguments of torch.ops.fusedops's, made of the inputs, where they are others.
    registered: Callable[..., tuple[Any, ...]] | None = None

    # Tensors of the first input's size that the forward and the backward move: each input read once, each output
    # written once. 0: the gradient is the upstream one, and there is nothing to measure.
    moves: tuple[float, float] = (0, 0)
    # Arithmetic operations per element of the first input, of the forward and the backward. A function such as exp
    # counts as one, as do the comparison of a maximum and each term of a sum.
    operations: tuple[int, int] = (0, 0)

    # What a user writes without fusedops, over the functions `n` of a framework. Compilers get it, and in float64 it is
    # the reference. 16-bit inputs are computed in float32 (`n.wide`) and rounded once, in x's dtype (`n.like`).
    formula: Callable[[Any], Function] | None = None
    # Functions of others: PyTorch's own, of the module torch, where it has one; Liger's, of liger_kernel.ops; QuACK's,
    # of quack. Keras's layer, by its class and epsilon.
    torch: Callable[[Any], Function] | None = None
    liger: Callable[[Any], Function] | None = None
    quack: Callable[[Any], Function] | None = None
    quack_parameters: str = ""  # the only dtype of parameters that QuACK takes
    keras: tuple[str, float] | None = None
    torch_others: Mapping[str, Callable[[Any], Function]] = field(default_factory=dict)  # by the contender's name; GPU

    function: str = ""  # the public function, where it is called otherwise

    # The same as an expression of a user's own, over the names of the inputs; `own`: fusedops has no operator for it.
    expression: str = ""
    own: bool = False

    # Shapes: of so many rows and columns, of the largest, and of a call that is all overhead.
    shape: Callable[[int, int], Shape] = lambda rows, columns: (rows, columns)
    largest: tuple[int, int] = (16384, 8192)
    smallest: Shape = (4, 16)

    # Goals: the most times the floor that the forward, and forward and backward, take on a GPU, 0 where nothing is
    # promised; speeds over TensorFlow's contenders on a CPU; whether calls in TensorFlow have goals, as all elementwise
    # ones have.
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
