from tests.helpers.norms import Norm

SPECIFICATION = Norm(
    "add_layer_norm",
    signature="(x, residual, weight=None, bias=None, *, eps=1e-05, dropout=0.0, seed=None)",
    centered=True,
    eps=1e-5,
)
