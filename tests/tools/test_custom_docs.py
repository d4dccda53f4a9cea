"""docs/your-own-operator.md: its programs run in both frameworks, and give the shown output or error."""

from __future__ import annotations

import pytest

from fusedops.building.cuda import NoCudaError, find_toolkit
from fusedops.building.options import Options
from tests.conftest import require
from tests.helpers.custom_operators import need_compiler, shared_cache
from tests.helpers.frameworks import BOTH
from tests.helpers.running import ROOT, need_inductor, run_program

PAGE = ROOT / "docs/your-own-operator.md"


@pytest.mark.slow
@pytest.mark.parametrize("framework", BOTH)
def test_programs(framework, device, tmp_path, tmp_path_factory):
    require(framework, device)
    need_compiler()
    if framework == "torch":
        need_inductor()
    if device == "cuda":
        try:
            find_toolkit(Options.from_environment())
        except NoCudaError as error:
            pytest.skip(f"its sources for GPUs need nvcc: {error}")
    cache = {"FUSEDOPS_CACHE_DIR": str(shared_cache(tmp_path_factory)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = run_program("custom_page.py", PAGE, framework, device=device, cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stdout + done.stderr
