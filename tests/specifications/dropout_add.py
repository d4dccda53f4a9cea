from tests.specifications.dropout import Dropout

SPECIFICATION = Dropout("dropout_add", "residual")
