from tests.helpers.norms import Norm

SPECIFICATION = Norm(
    "rms_norm", signature="(x, weight=None, *, eps=1e-06, weight_offset=0.0)", centered=False, eps=1e-6
)
