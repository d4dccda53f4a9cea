from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.specifications.linear_log_prob import LinearLogProb


class LinearLogProbEntropy(LinearLogProb):
    name = "linear_log_prob_entropy"
    operator = "linear_log_prob"
    function = "linear_log_prob"
    code = "(lambda *inputs, **options: fo.linear_log_prob(*inputs, **options, entropy=True))"
    fixed_options: Mapping[str, Any] = {"need_entropy": True}
    outputs = ("log_prob", "lse", "entropy")
    compute_dtype_outputs = ("log_prob", "lse", "entropy")

    def made_by(self, functions):
        return partial(functions.linear_log_prob, entropy=True)


SPECIFICATION = LinearLogProbEntropy()
