from collections.abc import Mapping
from typing import Any

from tests.specifications.linear_log_prob import LinearLogProb


class LinearLogProbEntropy(LinearLogProb):
    name = "linear_log_prob_entropy"
    operator = "linear_log_prob"
    function = "linear_log_prob"
    function_options: Mapping[str, Any] = {"entropy": True}
    fixed_options: Mapping[str, Any] = {"need_entropy": True}
    outputs = ("log_prob", "lse", "entropy")
    compute_dtype_outputs = ("log_prob", "lse", "entropy")


SPECIFICATION = LinearLogProbEntropy()
