"""Errors for arguments that a public function does not have. They translate the argument names of other libraries.

Python raises its own error before it enters a function. So every function takes `*more` and `**others`, at less cost
than a wrapper that catches the error. `fusedops.functions` hides both from the signature that users see.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fusedops import checks

# Arguments of other libraries, and the argument here. An entry applies to functions that have the latter.
NAMES = {
    "approximate": "activation",
    "attention_mask": "mask",
    "attn_mask": "mask",
    "beta": "bias",
    "ce_weight": "class_weight",
    "dropout_p": "dropout",
    "epsilon": "eps",
    "gamma": "weight",
    "ignore_class": "ignore_index",
    "is_causal": "causal",
    "logits_soft_cap": "softcap",
    "lse_square_scale": "z_loss",
    "sliding_window": "window",
    "sm_scale": "scale",
    "soft_cap": "softcap",
    "softmax_scale": "scale",
    "use_causal_mask": "causal",
    "weight": "class_weight",
    "window_size": "window",
}
# Arguments of other libraries without a counterpart, and why. An entry applies to functions with a listed argument.
ABSENT = {
    **dict.fromkeys(("axis", "dim"), (("eps", "gate", "labels", "mask"), "the last dimension is taken")),
    "enable_gqa": (("q",), "heads of q share the heads of k and v where there are fewer"),
    "from_logits": (("labels",), "the loss is always that of logits"),
    **dict.fromkeys(("max_seqlen_k", "max_seqlen_q"), (("offsets_q",), "the offsets give the lengths")),
    "normalized_shape": (("eps",), "the last dimension is normalized"),
    "num_classes": (("labels",), "the shapes give the number of classes"),
    "training": (("rate",), "a call always drops elements"),
}


def refuse(function: str, more: Sequence[Any], others: Mapping[str, Any]) -> NoReturn:
    """Raises TypeError for positional arguments past the last one, or for keywords that are no arguments."""
    from fusedops import functions

    declared = next(public for public in functions.PUBLIC if public.__name__ == function)
    parameters = inspect.signature(declared).parameters
    if others:
        name = next(iter(others))
        python = checks.unexpected_keyword(function, name)
        raise TypeError(f"fusedops.{function}: {name} must {_expected(name, parameters)}; {python}")
    positional = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    least, most = sum(p.default is p.empty for p in positional), len(positional)
    takes = f"from {least} to {most}" if least < most else f"{most}"
    python = f"{function}() takes {takes} positional argument{'s' * (most > 1)} but {most + len(more)} were given"
    by_name = ", ".join([*parameters][most:])
    others_too = f", and {by_name} must be given by name" if by_name else ""
    names = ", ".join(p.name for p in positional)
    raise TypeError(f"fusedops.{function}: positional arguments must be {names}{others_too}; {python}")


def _expected(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    here = NAMES.get(name)
    if here in parameters:
        return f"be given as {here}"
    arguments, why = ABSENT.get(name, ((), ""))
    if any(argument in parameters for argument in arguments):
        return f"be left out, since {why}"
    return f"be one of {', '.join(parameters)}"
