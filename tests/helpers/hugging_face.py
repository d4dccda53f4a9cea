"""The models of Hugging Face's transformers on which `convert` is tested: one family for each form of code at least.

Their small configs are found without knowing the family (`audits/families`), so that adding one is adding its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

VOCABULARY = 96  # ordinary tokens of the small models; those after them may be special


@dataclass(frozen=True)
class Family:
    """A model type of transformers, and the class of its model if it is not the one that comes first."""

    name: str
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dtype: str = "float32", device: str = "cpu", **options: Any) -> Any:
        """A small model whose weights are all random: those of norms, too, which begin as ones or zeros."""
        from audits.families.hugging_face import families  # here, since it needs transformers

        family = families()[self.name]
        if self.model:
            family = replace(family, models=(self.model,))
        return family.build(dtype, device, **{**self.options, **options})


_GROUPED = {"num_key_value_heads": 2}

# Those that write text, which the suites of `convert` have them do.
FAMILIES = {
    "bert": Family("bert", "BertLMHeadModel", {"is_decoder": True}),
    "gemma": Family("gemma"),
    "gemma2": Family("gemma2", options={"attn_implementation": "eager"}),  # with sdpa, its soft cap stays there
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

SLOW = ("gemma", "mistral", "qwen2")  # whose code is that of others

STEPPED = (
    *("clip", "cohere2", "deepseek_v3", "glm4", "gpt_oss", "granite", "modernbert", "qwen3_next", "t5", "vit"),
    "whisper",
)
"""Model types of other forms, of which the quick tests compare results step by step."""
