"""All uses of transformers beyond its public API.

Each is imported on first use: a version that lacks one loses only the counterparts that need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops import lazy

if TYPE_CHECKING:
    from transformers.activations import ACT2FN as ACT2FN
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS as ALL_EXPERTS_FUNCTIONS
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as sdpa_attention_forward
    from transformers.loss.loss_utils import ForCausalLMLoss as ForCausalLMLoss
    from transformers.loss.loss_utils import ForMaskedLMLoss as ForMaskedLMLoss
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.masking_utils import bidirectional_mask_function as bidirectional_mask_function
    from transformers.masking_utils import causal_mask_function as causal_mask_function
    from transformers.masking_utils import find_packed_sequence_indices as find_packed_sequence_indices
    from transformers.masking_utils import prepare_padding_mask as prepare_padding_mask
    from transformers.masking_utils import sdpa_mask as sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as ALL_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
    from transformers.utils import can_return_tuple as can_return_tuple
    from transformers.utils.import_utils import is_tracing as is_tracing
    from transformers.utils.output_capturing import _active_collector as _active_collector
else:
    __getattr__ = lazy.members(
        __name__,
        {
            "ACT2FN": "transformers.activations",
            "ALL_ATTENTION_FUNCTIONS": "transformers.modeling_utils",
            "ALL_EXPERTS_FUNCTIONS": "transformers.integrations.moe",
            "ALL_MASK_ATTENTION_FUNCTIONS": "transformers.masking_utils",
            "ForCausalLMLoss": "transformers.loss.loss_utils",
            "ForMaskedLMLoss": "transformers.loss.loss_utils",
            "PreTrainedModel": "transformers.modeling_utils",
            "_active_collector": "transformers.utils.output_capturing",
            "bidirectional_mask_function": "transformers.masking_utils",
            "can_return_tuple": "transformers.utils",
            "causal_mask_function": "transformers.masking_utils",
            "find_packed_sequence_indices": "transformers.masking_utils",
            "is_tracing": "transformers.utils.import_utils",
            "prepare_padding_mask": "transformers.masking_utils",
            "sdpa_attention_forward": "transformers.integrations.sdpa_attention",
            "sdpa_mask": "transformers.masking_utils",
        },
    )
