"""One module per operator, each with a SPECIFICATION. A new module is tested by every suite without further mention."""

import importlib
import pkgutil

from specification import Specification

SPECIFICATIONS: tuple[Specification, ...] = tuple(
    importlib.import_module(f"{__name__}.{module.name}").SPECIFICATION for module in pkgutil.iter_modules(__path__)
)

WITH_PARAMETERS = tuple(spec for spec in SPECIFICATIONS if spec.parameters)
