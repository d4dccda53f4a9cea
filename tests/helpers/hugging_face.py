"""The models of Hugging Face's transformers that test `convert`: at least one family for each form of code.

`audits/families` finds their small configs, so that a new family needs only its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

VOCABULARY = 96  # ordinary tokens of the small models; later ones may be special


@dataclass(frozen=True)
class Family:
    """A model type of transformers, and the class of its model if it is not the first one."""

    name: str
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dtype: str = "float32", device: str = "cpu", **options: Any) -> Any:
        """A small model with random weights, including those of norms, which are ones or zeros initially."""
        from audits.families.hugging_face import families  # here, since it needs transformers

        family = families()[self.name]
        if self.model:
            family = replace(family, models=(self.model,))
        return family.build(dtype, device, **{**self.options, **options})


_GROUPED = {"num_key_value_heads": 2}

# Language models; the suites of `convert` generate text with them.
FAMILIES = {
    "bert": Family("bert", "BertLMHeadModel", {"is_decoder": True}),
    "gemma": Family("gemma"),
    "gemma2": Family("gemma2", options={"attn_implementation": "eager"}),  # with sdpa, its soft cap is dropped
    "gemma3": Family("gemma3_text"),
    "gpt2": Family("gpt2"),
    "llama": Family("llama", options=_GROUPED),
    "mistral": Family("mistral"),
    "mixtral": Family("mixtral"),
    "phi": Family("phi"),
    "phi3": Family("phi3"),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", options=_GROUPED),
}
"""By the names of the tests."""

SLOW = ("gemma", "mistral", "qwen2")  # their code equals that of other families

STEPPED = (
    *("clip", "cohere2", "deepseek_v3", "glm4", "gpt_oss", "granite", "modernbert", "qwen3_next", "t5", "vit"),
    "whisper",
)
"""Model types of other forms, of which the quick tests compare results step by step."""
