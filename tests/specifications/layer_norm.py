from tests.helpers.norms import Norm

SPECIFICATION = Norm("layer_norm", signature="(x, weight=None, bias=None, *, eps=1e-05)", centered=True, eps=1e-5)
