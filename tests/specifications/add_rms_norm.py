from tests.helpers.norms import Norm

SPECIFICATION = Norm(
    "add_rms_norm",
    signature="(x, residual, weight=None, *, eps=1e-06, weight_offset=0.0, dropout=0.0, seed=None)",
    centered=False,
    eps=1e-6,
)
