from tests.helpers.norms import Norm

SPECIFICATION = Norm("add_layer_norm", centered=True, eps=1e-5)
