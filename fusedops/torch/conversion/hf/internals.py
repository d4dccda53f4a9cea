"""What is taken from transformers' own modules, because it is not part of what transformers promises to keep.

Each is imported on first use: a version that lacks one loses the counterparts that need it, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops import lazy

if TYPE_CHECKING:
    from transformers import activations as activations
    from transformers.loss.loss_utils import ForCausalLMLoss as ForCausalLMLoss
    from transformers.loss.loss_utils import ForMaskedLMLoss as ForMaskedLMLoss
    from transformers.pytorch_utils import Conv1D as Conv1D
    from transformers.utils import can_return_tuple as can_return_tuple
else:
    __getattr__ = lazy.members(
        __name__,
        {
            "Conv1D": "transformers.pytorch_utils",
            "ForCausalLMLoss": "transformers.loss.loss_utils",
            "ForMaskedLMLoss": "transformers.loss.loss_utils",
            "activations": "transformers",
            "can_return_tuple": "transformers.utils",
        },
    )


def has_own_gate(experts: type) -> bool:
    """Whether the experts of a mixture apply another gate than act(gate) · up."""
    gate: Any = experts._apply_gate  # type: ignore[attr-defined]
    return gate.__name__ != "_default_apply_gate"


def are_experts_eager(config: Any) -> bool:
    """Whether one expert runs after the other."""
    return getattr(config, "_experts_implementation", None) == "eager"
