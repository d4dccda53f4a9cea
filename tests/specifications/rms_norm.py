from tests.helpers.norms import Norm

SPECIFICATION = Norm("rms_norm", centered=False, eps=1e-6)
