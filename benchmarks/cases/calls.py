"""What is measured: the Python call of every operator on inputs so small that nothing else takes time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import BACKWARD, BOTH, ELEMENTWISE, RECORDED, ROWS, Case, Goal, moving, product

SHAPES = {"cross_entropy": (4, 16), "rope": (1, 4, 1, 16)}  # of the others over rows: (4, 16)
WITH_GOALS = ("rms_norm", "layer_norm", "softmax", "bias_act", "swiglu", *ELEMENTWISE)  # in TensorFlow

ADD = Goal("tf", "tf.add", 1.0, as_time=True)
STEP = Goal("tf", "bare tape", 1 / 1.05, as_time=True)  # over as many tensors: what the tape takes depends on these
RAW = Goal("tf", "raw_ops.AddV2", 1 / 1.3, contender="raw", as_time=True)


def call_cases() -> Iterator[Case]:
    for section, device in (("call", "cpu"), ("call-gpu", "cuda")):
        for operator in ELEMENTWISE:
            cpu = (Goal("torch", "addcmul", 1 / 3.2, as_time=True), RAW) if device == "cpu" else ()
            yield moving(section, device, operator, "forward", "float32", (16,), ADD, *cpu)
            both: tuple[Goal, ...] = (STEP,)
            if operator == "axpby" and device == "cpu":
                recorded = Goal("torch", "addcmul", 1 / 4, as_time=True)
                yield moving(section, device, operator, RECORDED, "float32", (16,), recorded, frameworks=("torch",))
                both = (STEP, Goal("torch", "addcmul", 1 / 1.4, as_time=True))
            # PyTorch's autograd hands the upstream gradient through add: there is no step to measure.
            frameworks = ("torch", "tf") if operator in BACKWARD else ("tf",)
            yield moving(section, device, operator, BOTH, "float32", (16,), *both, frameworks=frameworks)
        for operator in ROWS:
            for variant, goal in (("forward", ADD), (BOTH, STEP)):
                goals = (goal,) if operator in WITH_GOALS else ()
                yield moving(section, device, operator, variant, "float32", SHAPES.get(operator, (4, 16)), *goals)
        yield product(section, device, "NN", "float32", (8, 8, 8))
