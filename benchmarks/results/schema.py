"""What a run writes: `results.json` is a list of one `Run` for each framework. Times are in seconds, sizes in bytes.

Derived and not stored: the time of a contender is the median of its samples, its spread half of the distance between
their quartiles, its rate `work` over time; a row's floor is the time of "copy" times `work` over the copy's own `work`.
"""

from __future__ import annotations

from typing import Any, TypedDict


class Clocks(TypedDict):
    """As nvidia-smi found them, in MHz."""

    sm: int
    memory: int
    sm_most: int
    memory_most: int


class _Machine(TypedDict):
    fusedops: str  # versions
    python: str
    versions: dict[str, str]  # of torch, tensorflow, triton, keras, liger-kernel, ...: those that are installed
    date: str  # when it started: ISO 8601, UTC
    cpu: str
    cores: int  # that this process may use
    load: list[float]  # averages over 1, 5 and 15 minutes, when it started


class Environment(_Machine, total=False):
    version: str  # of the framework, as it calls itself
    build: dict[str, Any]  # what `_build.json` says of the library
    seconds: float  # that the run has taken
    # Only where nvidia-smi finds a GPU; the first of several.
    gpu: str
    driver: str
    clocks: dict[str, Clocks]  # "before" and "after"
    # Only where the framework measures on it.
    l2: int  # bytes of its cache


class _Contender(TypedDict):
    work: float  # of one call: the case's, but for a copy
    problem: str | None  # why there is no time: an error, or "wrong: ..."


class Contender(_Contender, total=False):
    # Of one call each, one per round: those at one place are of one round of all contenders. In a run that was trimmed,
    # the least, the quartiles and the most.
    samples: list[float]
    host_share: float  # part of the time in which the host issued calls, or waited in one; near 1: it was measured
    memory: int  # of the GPU, most in use during one call beyond what was in use before: outputs and workspace
    peak: int  # of models: likewise, with what was in use before: weights and inputs
    crashed: bool  # it left the GPU unusable; the row was measured anew without it


class _Row(TypedDict):
    key: str  # section/operator/variant/dtype/shape: the same row has the same key in every run
    section: str  # of case.SECTIONS
    device: str  # "cpu" or "cuda"
    operator: str
    variant: str  # "forward", "forward + backward", "backward"; "NN" of a matrix product; ...
    dtype: str
    parameters: str  # the dtype of weight and bias, if it is another
    shape: list[int]
    work: float
    unit: str  # of the work: "B", "FLOP" or "token"
    bytes: float  # that must move: each input read once, each output written once; 0 of models
    flops: float  # arithmetic operations of the formula, a function such as exp counted as one; 0 of models
    cache: str  # "cold": the inputs come from memory; "warm": from a cache, if they fit; "" where the host is measured
    frameworks: list[str]
    goals: list[dict[str, Any]]  # of case.Goal
    contenders: dict[str, Contender]  # "fusedops" and others; "copy" is the floor


class Row(_Row, total=False):
    problem: str  # why nothing was measured
    seconds: float  # that it took, with inputs, compilation and checks
    published: dict[str, float]  # times that others have published for this row, on other machines


class Run(TypedDict):
    framework: str  # "torch" or "tf"
    quick: bool
    environment: Environment
    results: list[Row]
    notes: list[str]  # sentences: what could not be compared
