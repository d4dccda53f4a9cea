"""python -m build_tools [torch] [tf] [jax]: builds these bindings in place, by default of all installed frameworks."""

import sys
from pathlib import Path

from build_tools import operators
from fusedops.building.ahead import build
from fusedops.loading import FRAMEWORKS

unknown = set(sys.argv[1:]) - FRAMEWORKS.keys()
if unknown:
    raise SystemExit(f"fusedops: the bindings are {', '.join(FRAMEWORKS)}; got {', '.join(sorted(unknown))}")
build(sys.argv[1:], Path())
operators.write()
