"""What is taken from transformers' own modules, because it is not part of what transformers promises to keep.

Each is imported on first use: a version that lacks one loses the counterparts that need it, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops import lazy

if TYPE_CHECKING:
    from transformers.activations import ACT2FN as ACT2FN
    from transformers.loss.loss_utils import ForCausalLMLoss as ForCausalLMLoss
    from transformers.loss.loss_utils import ForMaskedLMLoss as ForMaskedLMLoss
    from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
    from transformers.utils import can_return_tuple as can_return_tuple
else:
    __getattr__ = lazy.members(
        __name__,
        {
            "ACT2FN": "transformers.activations",
            "ForCausalLMLoss": "transformers.loss.loss_utils",
            "ForMaskedLMLoss": "transformers.loss.loss_utils",
            "PreTrainedModel": "transformers.modeling_utils",
            "can_return_tuple": "transformers.utils",
        },
    )


def are_experts_eager(experts: Any) -> bool:
    """Whether one expert runs after the other, by code that has a gate of its own."""
    return getattr(getattr(experts, "config", None), "_experts_implementation", None) == "eager"
