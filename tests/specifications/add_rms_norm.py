from tests.helpers.norms import Norm

SPECIFICATION = Norm("add_rms_norm", centered=False, eps=1e-6)
