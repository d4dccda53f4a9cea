"""The format of results: `results.json` is a list of one `Run` per framework. Times are in seconds, sizes in bytes.

Derived figures, which are not stored:

time      the median of an implementation's samples
spread    half of the distance between their quartiles
rate      `work` over time
floor     the time of "copy" times the row's `work` over the copy's `work`
"""

from __future__ import annotations

from typing import Any, TypedDict


class Clocks(TypedDict):
    """Clocks reported by nvidia-smi, in MHz."""

    sm: int
    memory: int
    sm_most: int
    memory_most: int


class _Machine(TypedDict):
    fusedops: str  # version
    python: str  # version
    versions: dict[str, str]  # of installed packages: torch, tensorflow, triton, keras, liger-kernel, ...
    date: str  # start of the run: ISO 8601, UTC
    cpu: str
    cores: int  # available to this process
    load: list[float]  # averages over 1, 5 and 15 minutes at the start of the run


class Environment(_Machine, total=False):
    version: str  # reported by the framework
    build: dict[str, Any]  # `_build.json` of the library
    seconds: float  # duration of the run
    # Only if nvidia-smi finds a GPU; the first of several.
    gpu: str
    driver: str
    clocks: dict[str, Clocks]  # "before" and "after"
    # Only if the framework measures on the GPU and reports it.
    l2: int  # size of the L2 cache in bytes


class _Implementation(TypedDict):
    work: float  # of one call: the case's, except for a copy
    problem: str | None  # the reason if there is no time: an error, or "wrong: ..."


class Implementation(_Implementation, total=False):
    # Seconds per call, one sample per round; all implementations share the rounds. In a trimmed run: minimum, quartiles
    # and maximum.
    samples: list[float]
    host_share: float  # fraction of the time in which the host issued calls or waited in one; near 1: host time
    memory: int  # peak GPU memory of one call beyond the memory in use before: outputs and workspace
    peak: int  # only for models: peak GPU memory including weights and inputs
    crashed: bool  # True if it left the GPU unusable; the row was measured again without it


class _Row(TypedDict):
    key: str  # section/operator/variant/dtype/shape: identifies a row across runs
    section: str  # of case.SECTIONS
    device: str  # "cpu" or "cuda"
    operator: str
    variant: str  # "forward", "forward + backward", "backward"; "NN" of a matrix product; ...
    dtype: str
    parameters: str  # the dtype of weight and bias, if different
    shape: list[int]
    work: float
    unit: str  # of the work: "B", "FLOP" "token" or "step"
    bytes: float  # minimum traffic: each input read once, each output written once; 0 for models
    flops: float  # arithmetic operations of the formula, a function such as exp counted as one; 0 for models
    cache: str  # "cold": inputs are read from memory; "warm": from a cache if they fit; "": host time
    frameworks: list[str]
    goals: list[dict[str, Any]]  # fields of case.Goal
    implementations: dict[str, Implementation]  # "fusedops" and others; "copy" defines the floor


class Row(_Row, total=False):
    problem: str  # the reason if nothing was measured
    seconds: float  # duration of the row, with inputs, compilation and checks
    published: dict[str, float]  # times published by others for this row, on other machines


class Run(TypedDict):
    framework: str  # "torch", "tf" or "jax"
    quick: bool
    environment: Environment
    results: list[Row]
    notes: list[str]  # sentences, such as on missing libraries
