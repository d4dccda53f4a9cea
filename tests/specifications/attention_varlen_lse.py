from tests.helpers.attention import ReturningLse
from tests.specifications.attention_varlen import AttentionVarlen, joined_log, sequences


class AttentionVarlenLse(ReturningLse, AttentionVarlen):
    name = "attention_varlen_lse"
    function = "attention_varlen"

    def reference(self, **inputs):
        return super().reference(**inputs), joined_log([x.log_sum for _, x in sequences(**inputs)], inputs["q"])

    def magnitude(self, **inputs):
        return super().magnitude(**inputs), joined_log([x.log_magnitude() for _, x in sequences(**inputs)], inputs["q"])


SPECIFICATION = AttentionVarlenLse()
