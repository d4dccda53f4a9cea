"""The environment that fusedops is installed to, which pip hides from a build of its own."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

from fusedops.loading import Framework

# By framework: a file that says what it was built with, and how.
ABOUT = {
    "torch": ("version.py", lambda about: about["cuda"]),
    "tf": ("python/platform/build_info.py", lambda about: about["build_info"]["is_cuda_build"]),
}


def show_site_packages() -> None:
    """pip builds in an isolated environment, where torch and TensorFlow are not seen. They are appended, so that what
    pip chose for the build still comes first."""
    # -E: pip isolates a build through PYTHONPATH.
    question = [sys.executable, "-E", "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    answer = subprocess.run(question, capture_output=True, text=True, check=True).stdout
    sys.path += [place for place in json.loads(answer) if place not in sys.path]


def without_cuda(framework: Framework) -> bool:
    """Whether the framework that is installed was built without CUDA; False also where it does not say. It is not
    imported, which would take seconds."""
    spec = importlib.util.find_spec(framework.module)
    file, with_cuda = ABOUT[framework.name]
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            return not with_cuda(runpy.run_path(str(Path(folder, file))))
        except (OSError, LookupError):
            pass
    return False
