from functools import partial

from tests.specifications.attention_varlen import AttentionVarlen, joined_log, sequences


class AttentionVarlenLse(AttentionVarlen):
    name = "attention_varlen_lse"
    function = "attention_varlen"
    code = "(lambda *inputs, **options: fo.attention_varlen(*inputs, **options, return_lse=True))"
    outputs = ("y", "lse")
    compute_dtype_outputs = ("lse",)

    def made_by(self, functions):
        return partial(functions.attention_varlen, return_lse=True)

    def reference(self, **inputs):
        return super().reference(**inputs), joined_log([x.log_sum for _, x in sequences(**inputs)], inputs["q"])

    def magnitude(self, **inputs):
        return super().magnitude(**inputs), joined_log([x.log_magnitude() for _, x in sequences(**inputs)], inputs["q"])


SPECIFICATION = AttentionVarlenLse()
