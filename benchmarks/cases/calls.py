"""Cases of the Python call of every operator, on inputs so small that the call's overhead dominates."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import BOTH, RECORDED, Case, Goal, bandwidth_case, product
from benchmarks.operators import ELEMENTWISE, OVER_ROWS

ADD = Goal("tf", "tf.add", 1.0, as_time=True)
STEP = Goal("tf", "bare tape", 1 / 1.05, as_time=True)  # a tape's time depends on the number of tensors
RAW = Goal("tf", "raw_ops.AddV2", 1 / 1.3, implementation="raw", as_time=True)


def call_cases() -> Iterator[Case]:
    for section, device in (("call", "cpu"), ("call-gpu", "cuda")):
        for operator in ELEMENTWISE:
            cpu = (Goal("torch", "addcmul", 1 / 3.2, as_time=True), RAW) if device == "cpu" else ()
            name, shape = operator.name, operator.smallest
            yield bandwidth_case(section, device, name, "forward", "float32", shape, ADD, *cpu)
            both: tuple[Goal, ...] = (STEP,)
            if name == "axpby" and device == "cpu":
                recorded = Goal("torch", "addcmul", 1 / 4, as_time=True)
                yield bandwidth_case(section, device, name, RECORDED, "float32", shape, recorded, frameworks=("torch",))
                both = (STEP, Goal("torch", "addcmul", 1 / 1.4, as_time=True))
            # PyTorch's autograd returns add's upstream gradient as it is: there is no backward to measure.
            frameworks = ("torch", "tf") if operator.moves[1] else ("tf",)
            yield bandwidth_case(section, device, name, BOTH, "float32", shape, *both, frameworks=frameworks)
        for operator in OVER_ROWS:
            for variant, goal in (("forward", ADD), (BOTH, STEP)):
                goals = (goal,) if operator.tf_calls else ()
                yield bandwidth_case(section, device, operator.name, variant, "float32", operator.smallest, *goals)
        yield product(section, device, "NN", "float32", (8, 8, 8))
