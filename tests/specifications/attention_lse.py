from tests.helpers.attention import ReturningLse
from tests.specifications.attention import Attention, plain

# One for each kernel and each option; `attention` has others.
SAMPLES = (
    *("odd", "blocks", "tiles-64", "tiles-128", "tiles-256", "tiles-grouped", "tiles-window", "tiles-lengths"),
    *("tiles-mask", "tiles-aligned-mask-128", "tiles-softcap", "one-query", "rank-3", "rank-5", "no-keys", "no-heads"),
    *("no-queries-mask", "causal-8x3", "causal-65x130", "window-8x3", "behind-5x5", "mask-2x4x5x7", "mask-2x1x1x7"),
    *("lengths-int32", "together", "softcap-0.5", "scale--0.7", "large"),
    *("dropout-behind", "dropout-together", "dropout-tiles-128", "sinks", "terms", "terms-of-one", "terms-128"),
    *("bias-2x4x5x7", "bias-hides-together", "bias-of-few", "bias-tiles-64", "heads-512"),
)


class AttentionLse(ReturningLse, Attention):
    name = "attention_lse"
    function = "attention"

    def more_samples(self, random):
        samples = {sample.name: sample for sample in super().more_samples(random)}
        return [samples[name] for name in SAMPLES]

    def reference(self, **inputs):
        return super().reference(**inputs), plain(**inputs).log_sum

    def magnitude(self, **inputs):
        return super().magnitude(**inputs), plain(**inputs).log_magnitude()


SPECIFICATION = AttentionLse()
