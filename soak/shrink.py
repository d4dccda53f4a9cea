"""The simplest call that still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable

from soak.plan import Plan
from soak.running import Failure

SECONDS = 20.0


def shrunk(failure: Failure, attempt: Callable[[Plan], Failure | None]) -> Failure:
    end = time.monotonic() + SECONDS
    plans = failure.plan.simpler()
    while (plan := next(plans, None)) and time.monotonic() < end:
        found = attempt(plan)
        if found and found.kind == failure.kind:
            failure, plans = found, plan.simpler()
    return failure
