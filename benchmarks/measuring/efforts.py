"""How long a case is measured."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cases.case import Case
from benchmarks.measuring.timing import Effort

# Section -> how long to measure; long enough for a figure that repeats, short enough for all to take minutes.
EFFORTS = {
    "stream": Effort(round=4e-3, total=0.3, least_calls=3),
    "launch": Effort(round=2e-3, total=0.5, least_calls=5),
    "matmul": Effort(round=8e-3, total=0.3, least_calls=3),
    "linear": Effort(round=8e-3, total=0.6, least_calls=3),
    "attention": Effort(round=8e-3, total=0.3, least_calls=3),
    "decoding": Effort(round=2e-3, total=0.3, least_calls=2),
    "rows": Effort(round=4e-3, total=0.4, least_calls=2),
    "float8": Effort(round=4e-3, total=0.4, least_calls=2),
    "dtypes": Effort(round=4e-3, total=0.3, least_calls=2),
    "small": Effort(round=1e-3, total=0.25, least_calls=2),
    "growth": Effort(round=1e-3, total=0.2),
    "growth-rows": Effort(round=1e-3, total=0.2),
    "growth-length": Effort(round=1e-3, total=0.2),
    "seeds": Effort(round=2e-3, total=0.5),
    "seeds-cpu": Effort(round=2e-3, total=0.5),
    "first-use": Effort(round=0.0, total=5.0, most_rounds=9),
    "python": Effort(round=5e-3, total=0.3, least_calls=5),
    "call": Effort(round=2e-3, total=0.4),
    "call-gpu": Effort(round=2e-3, total=0.4),
    "cpu": Effort(round=0.0, total=1.2),
    "cpu-rows": Effort(round=10e-3, total=1.2),
    "attention-cpu": Effort(round=0.0, total=2.0, most_rounds=5),
    "keras": Effort(round=10e-3, total=1.0, least_calls=2),
    "transformers": Effort(round=50e-3, total=4.0, least_calls=2),
    "steps": Effort(round=0.0, total=10.0, least_rounds=12, most_rounds=12),
    # Several steps behind each other, as in training: the host may run ahead.
    "optimizers": Effort(round=0.0, total=5.0, least_calls=16, least_rounds=3, most_rounds=5),
}
SETUP = 0.5  # seconds that a case takes beside its effort, about: inputs, the reference, first calls


def effort_of(case: Case, quick: bool) -> Effort:
    effort = EFFORTS[case.section]
    return replace(effort, total=min(0.1, effort.total), least_rounds=3, least_calls=1) if quick else effort
